package genkit

import (
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"
)

// asMap is a schema in the form that Genkit has them in.
func asMap(s *jsonschema.Schema) map[string]any {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // of our own schemas
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		panic(err)
	}
	return m
}

// outputSchema is that of an output, or of the error that stands in its place.
func outputSchema(s *jsonschema.Schema) map[string]any {
	text := func(description string) any {
		return map[string]any{"type": "string", "description": description}
	}
	return map[string]any{"type": "object", "anyOf": []any{asMap(s), map[string]any{
		"type": "object",
		"properties": map[string]any{
			"error": text("what went wrong, and what to do"),
			"kind":  text("which kind of error it is, for programs"),
		},
		"required":             []any{"error", "kind"},
		"additionalProperties": false,
	}}}
}
