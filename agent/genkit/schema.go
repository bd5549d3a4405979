package genkit

import (
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"
)

// asMap returns a schema in Genkit's form.
func asMap(s *jsonschema.Schema) map[string]any {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // our own schemas are valid
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		panic(err)
	}
	return m
}

// outputSchema returns the schema of an output, or of the error in its place.
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
