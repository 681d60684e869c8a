// Command routing serves the routing service: `routing -config routing.yaml`.
package main

import (
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/routing"
)

func main() { serve.Main("routing", routing.Policy(), routing.New) }
