// Package apidoc is the OpenAPI description (Swagger 2.0) of the whole REST surface and a page
// that shows it.
package apidoc

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:embed assets/*
var assets embed.FS

// Page returns a file of the page at /docs.
func Page(name string) ([]byte, error) {
	raw, err := assets.ReadFile("assets/" + name)
	if err != nil {
		return nil, fmt.Errorf("read page: %w", err)
	}
	return raw, nil
}

// Build completes the generated description: overlay.json, a JSON merge patch (RFC 7396), adds the
// hand-made routes, replaces shapes that differ from the messages', and sets who may call. Every
// operation gets the common error answer; definitions nothing refers to any more are left out.
func Build(generated []byte, version string) ([]byte, error) {
	overlay, err := Page("overlay.json")
	if err != nil {
		return nil, err
	}
	var doc, patch map[string]any
	if err := json.Unmarshal(generated, &doc); err != nil {
		return nil, fmt.Errorf("read generated description: %w", err)
	}
	if err := json.Unmarshal(overlay, &patch); err != nil {
		return nil, fmt.Errorf("read description overlay: %w", err)
	}
	merge(doc, patch)
	doc["info"].(map[string]any)["version"] = version
	tags := map[string]bool{}
	for _, methods := range object(doc["paths"]) {
		for _, op := range object(methods) {
			op := object(op)
			object(op["responses"])["default"] = map[string]any{
				"description": "An error; see the reasons in the documentation.",
				"schema":      map[string]any{"$ref": "#/definitions/Error"},
			}
			list, _ := op["tags"].([]any)
			for _, tag := range list {
				tags[fmt.Sprint(tag)] = true
			}
		}
	}
	// The generator lists every service of the contracts, also those without a route.
	all, _ := doc["tags"].([]any)
	doc["tags"] = slices.DeleteFunc(all, func(t any) bool { return !tags[fmt.Sprint(object(t)["name"])] })
	prune(doc)
	out, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return nil, fmt.Errorf("write description: %w", err)
	}
	return append(out, '\n'), nil
}

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// merge applies a merge patch: objects merge, null deletes, anything else replaces.
func merge(into, patch map[string]any) {
	for name, value := range patch {
		sub, isObject := value.(map[string]any)
		old, wasObject := into[name].(map[string]any)
		switch {
		case value == nil:
			delete(into, name)
		case isObject && wasObject:
			merge(old, sub)
		case isObject:
			fresh := map[string]any{}
			merge(fresh, sub)
			into[name] = fresh
		default:
			into[name] = value
		}
	}
}

const definitionPrefix = "#/definitions/"

// prune drops the definitions that no path leads to.
func prune(doc map[string]any) {
	definitions := object(doc["definitions"])
	used := map[string]bool{}
	var visit func(v any)
	visit = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				name := strings.TrimPrefix(ref, definitionPrefix)
				if !used[name] {
					used[name] = true
					visit(definitions[name])
				}
			}
			for _, member := range v {
				visit(member)
			}
		case []any:
			for _, element := range v {
				visit(element)
			}
		}
	}
	visit(doc["paths"])
	maps.DeleteFunc(definitions, func(name string, _ any) bool { return !used[name] })
}
