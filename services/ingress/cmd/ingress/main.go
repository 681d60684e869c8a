// Command ingress serves one instance of the ingress service: `ingress -config ingress.yaml`.
package main

import (
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/ingress"
)

func main() { serve.Main("ingress", ingress.Policy(), ingress.New) }
