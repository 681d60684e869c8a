// Command agentfs serves the agentfs service: `agentfs -config agentfs.yaml`.
package main

import (
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/agentfs"
)

func main() { serve.Main("agentfs", agentfs.Policy(), agentfs.New) }
