// Command supervisor serves the supervisor of one cell: `supervisor -config supervisor.yaml`.
package main

import (
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/supervisor"
)

func main() {
	supervisor.Hook()
	serve.Main("supervisor", supervisor.Policy(), supervisor.New)
}
