module humanwork.internal/integration

go 1.26.0

replace humanwork.internal/proto => ../proto

require (
	humanwork.internal/pkg v0.0.0
	humanwork.internal/proto v0.0.0
	humanwork.internal/services v0.0.0
)

require (
	github.com/coder/acp-go-sdk v0.13.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.13.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap v1.28.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.44.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261110000943-09e21b237f2c // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace humanwork.internal/pkg => ../pkg

replace humanwork.internal/services => ../services
