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

// inputSchema is what models see. Where something may be null it does not say so:
// Genkit's plugin for Gemini refuses a type that is not a single word, and with it the
// whole request. To leave the field out means the same.
func inputSchema(s *jsonschema.Schema) map[string]any {
	m := asMap(s)
	notNull(m)
	return m
}

func notNull(schema map[string]any) {
	if types, ok := schema["type"].([]any); ok && len(types) == 2 && types[0] == "null" {
		schema["type"] = types[1]
	}
	properties, _ := schema["properties"].(map[string]any)
	for _, p := range properties {
		notNull(p.(map[string]any))
	}
	for _, name := range []string{"items", "additionalProperties"} {
		if inner, ok := schema[name].(map[string]any); ok {
			notNull(inner)
		}
	}
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
