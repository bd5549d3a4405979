package openapi

import (
	_ "embed"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// commentsJSON has the comments of the Go types in the document. A test writes it from their source.
//
//go:embed comments.json
var commentsJSON []byte

// comments are the texts that describe schemas. A key is the name of a type behind its package in this module, as in
// "Spec" and "server/auth.Key".
type comments struct {
	Types  map[string]string   `json:"types"`
	Fields map[string]string   `json:"fields"` // by the key of the type, a dot and the name of the field in Go
	Enums  map[string][]string `json:"enums"`  // the constants of types of strings
}

// module is the prefix of this module's packages.
const module = "github.com/seed46cd37a8/atoll"

// typeKey returns the key of a type.
func typeKey(t reflect.Type) string {
	pkg := strings.TrimPrefix(strings.TrimPrefix(t.PkgPath(), module), "/")
	if pkg == "" {
		return t.Name()
	}
	return pkg + "." + t.Name()
}

// describeSchemas adds descriptions and the allowed values to all schemas.
func (c comments) describeSchemas(schemas huma.Registry) {
	for name, schema := range schemas.Map() {
		t := schemas.TypeFromRef(schemaPrefix + name)
		if t == nil || t.Kind() != reflect.Struct {
			continue
		}
		schema.Description = c.Types[typeKey(t)]
		for _, f := range jsonFields(t) {
			property := schema.Properties[f.json]
			if property == nil {
				continue
			}
			property.Description = c.Fields[f.formatKey()]
			c.addEnum(property, f.field.Type)
		}
	}
}

// addEnum adds the allowed values of a type to its schema, or to that of the items of a list.
func (c comments) addEnum(schema *huma.Schema, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Slice && schema.Items != nil {
		c.addEnum(schema.Items, t.Elem())
		return
	}
	if t.Kind() != reflect.String || schema.Ref != "" {
		return
	}
	for _, value := range c.Enums[typeKey(t)] {
		schema.Enum = append(schema.Enum, value)
	}
}

// A jsonField is a field of a struct, or of one that it embeds, with its name in JSON.
type jsonField struct {
	owner reflect.Type
	field reflect.StructField
	json  string
}

// formatKey returns the key of the field in comments.
func (f jsonField) formatKey() string { return typeKey(f.owner) + "." + f.field.Name }

// jsonFields returns the fields of a struct that are in its JSON.
func jsonFields(t reflect.Type) []jsonField {
	var all []jsonField
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		owner := t
		if n := len(f.Index); n > 1 {
			owner = t.FieldByIndex(f.Index[:n-1]).Type
			for owner.Kind() == reflect.Pointer {
				owner = owner.Elem()
			}
		}
		all = append(all, jsonField{owner, f, name})
	}
	return all
}

// loadComments returns the comments of the types.
func loadComments() comments {
	var c comments
	if err := json.Unmarshal(commentsJSON, &c); err != nil {
		panic("openapi: comments.json: " + err.Error()) // TestComments writes it
	}
	return c
}
