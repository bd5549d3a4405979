package config

import (
	"encoding/json"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// JSONSchema returns the JSON Schema of the file, with which editors complete and check it.
func JSONSchema() []byte {
	const home = "/home/me"
	s := schemaOf(defaultConfig(map[string]string{"HOME": home}), home)
	root := newTableSchema("")
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Configuration of Atoll"
	for _, l := range s.settings {
		addToSchema(root, strings.Split(l.key, "."), l.newSchema(home))
	}
	for _, table := range slices.Sorted(maps.Keys(s.named)) {
		_ = s.addNamedTable(table + ".NAME") // NAME is a valid name
		one := newTableSchema("")
		for _, l := range s.settings {
			if key, ok := strings.CutPrefix(l.key, table+".NAME."); ok {
				addToSchema(one, strings.Split(key, "."), l.newSchema(home))
			}
		}
		addToSchema(root, []string{table}, map[string]any{
			"type": "object", "propertyNames": map[string]any{"pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,64}$"}, "additionalProperties": one,
		})
	}
	data, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("config: " + err.Error()) // maps of strings
	}
	return append(data, '\n')
}

// newTableSchema returns the schema of a table without keys.
func newTableSchema(doc string) map[string]any {
	table := map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
	if doc != "" {
		table["description"] = doc
	}
	return table
}

// addToSchema adds the schema of a key to that of a table, with the tables between.
func addToSchema(table map[string]any, key []string, one map[string]any) {
	properties := table["properties"].(map[string]any)
	if len(key) == 1 {
		properties[key[0]] = one
		return
	}
	below, ok := properties[key[0]].(map[string]any)
	if !ok {
		below = newTableSchema("")
		properties[key[0]] = below
	}
	addToSchema(below, key[1:], one)
}

// newSchema returns the schema of a setting. Defaults below home are left out.
func (l *setting) newSchema(home string) map[string]any {
	one := map[string]any{"description": l.doc}
	switch v := l.field.Interface().(type) {
	case Secret:
		one["type"], one["pattern"] = "string", "^(env|file):."
		return one
	case atoll.Bytes, atoll.Duration:
		one["type"] = []string{"string", "number"}
	case []string:
		one["type"], one["items"] = []string{"array", "string"}, map[string]any{"type": []string{"string", "number"}}
		if len(v) > 0 && l.key != "providers" { // depends on the system
			one["default"] = v
		}
		return one
	}
	switch l.field.Kind() {
	case reflect.Bool:
		one["type"], one["default"] = "boolean", l.field.Bool()
		return one
	case reflect.Float64:
		one["type"], one["default"] = "number", l.field.Float()
		return one
	case reflect.Int:
		one["type"], one["default"] = "integer", l.field.Int()
		return one
	}
	if one["type"] == nil {
		one["type"] = "string"
	}
	if l.form != "" && l.form != "path" {
		one["enum"] = strings.Fields(l.form)
	}
	if value := l.formatValue(); value != "" && !strings.HasPrefix(value, home) && value != DefaultProvider(runtime.GOOS) {
		one["default"] = value
	}
	return one
}
