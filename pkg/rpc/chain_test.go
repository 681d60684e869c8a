package rpc

import (
	"slices"
	"testing"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"go.uber.org/zap"
)

func TestChainOrder(t *testing.T) {
	links, err := chain(ServerConfig{Logger: zap.NewNop()}, grpcprom.NewServerMetrics())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range links {
		got = append(got, l.name)
	}
	want := []string{"metrics", "log", "errors", "recover", "authenticate", "authorize", "validate"}
	if !slices.Equal(got, want) {
		t.Errorf("chain = %v, want %v", got, want)
	}
}
