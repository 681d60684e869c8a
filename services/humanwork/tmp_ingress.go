package humanwork

import (
	"os"
	"strings"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/humanwork/internal/loopback"
	"humanwork.internal/services/ingress"
)

type ingressConfig struct{ urlFile string }

func (*ingressConfig) Validate(string) error { return nil }

func newIngress(c ingressConfig, env serve.Environment) (*ingress.Service, error) {
	env.Client.Self = rpc.Service("ingress")
	conn, err := rpc.Dial(loopback.Target("routing"), env.Client)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(c.urlFile)
	if err != nil {
		return nil, err
	}
	cfg := ingress.Defaults()
	cfg.PostgresURL = strings.TrimSpace(string(raw))
	return ingress.New(cfg, conn, ingress.NewDialedCells(func(t string) (*grpc.ClientConn, error) { return rpc.Dial(t, env.Client) }), env.Logger)
}
