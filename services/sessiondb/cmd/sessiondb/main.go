// Command sessiondb serves the sessiondb service of one cell: `sessiondb -config sessiondb.yaml`.
package main

import (
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/sessiondb"
)

func main() { serve.Main("sessiondb", sessiondb.Policy(), sessiondb.New) }
