// Package proto holds what is generated from the contracts and is not Go.
package proto

import _ "embed"

// OpenAPI is the Swagger 2.0 description of the routes in http.yaml, as generated.
//
//go:embed gen/humanwork.swagger.json
var OpenAPI []byte
