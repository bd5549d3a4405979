package openapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write comments.json")

// All types and fields of the document have a comment in Go, which describes them.
func TestComments(t *testing.T) {
	var types []reflect.Type
	doc := Document("test")
	for name := range doc.Components.Schemas.Map() {
		if of := doc.Components.Schemas.TypeFromRef(schemaPrefix + name); of.Kind() == reflect.Struct {
			types = append(types, of)
		}
	}
	c := comments{Types: map[string]string{}, Fields: map[string]string{}, Enums: map[string][]string{}}
	for _, of := range types {
		if of.Name() == "" {
			t.Errorf("a struct without a name is in the document: %v", of)
			continue
		}
		source := parsePackage(t, of.PkgPath())
		c.Types[typeKey(of)] = source.describeType(of.Name())
		for _, f := range jsonFields(of) {
			text := parsePackage(t, f.owner.PkgPath()).describeField(f.owner.Name(), f.field.Name)
			if text == "" {
				t.Errorf("%s has no comment", f.formatKey())
			}
			c.Fields[f.formatKey()] = text
			c.collectEnum(t, f.field.Type)
		}
		if c.Types[typeKey(of)] == "" {
			t.Errorf("%s has no comment", typeKey(of))
		}
	}
	want, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile("comments.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(want, commentsJSON) {
		t.Error("comments.json is outdated: run go test ./server/openapi -run TestComments -update")
	}
}

// collectEnum collects the constants of a type of strings.
func (c comments) collectEnum(t *testing.T, of reflect.Type) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.String || !strings.HasPrefix(of.PkgPath(), module) {
		return
	}
	if values := parsePackage(t, of.PkgPath()).listConstants(of.Name()); len(values) > 1 {
		c.Enums[typeKey(of)] = values
	}
}

// A goSource has the declarations of a package.
type goSource struct{ files []*ast.File }

var parsed = map[string]goSource{}

// parsePackage parses a package of this module.
func parsePackage(t *testing.T, pkg string) goSource {
	t.Helper()
	if s, ok := parsed[pkg]; ok {
		return s
	}
	dir := filepath.Join("../..", strings.TrimPrefix(pkg, module))
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(names), err)
	}
	var s goSource
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		s.files = append(s.files, f)
	}
	parsed[pkg] = s
	return s
}

// eachSpec calls f with each declaration of a type or of constants.
func (s goSource) eachSpec(f func(decl *ast.GenDecl, spec ast.Spec)) {
	for _, file := range s.files {
		for _, d := range file.Decls {
			if decl, ok := d.(*ast.GenDecl); ok {
				for _, spec := range decl.Specs {
					f(decl, spec)
				}
			}
		}
	}
}

// describeType returns the comment of a type.
func (s goSource) describeType(name string) (text string) {
	s.eachSpec(func(decl *ast.GenDecl, spec ast.Spec) {
		if x, ok := spec.(*ast.TypeSpec); ok && x.Name.Name == name {
			text = joinComment(x.Doc, x.Comment)
			if text == "" {
				text = joinComment(decl.Doc)
			}
		}
	})
	return text
}

// describeField returns the comment of a field of a struct: the lines before it, or the rest of its line.
func (s goSource) describeField(owner, name string) (text string) {
	s.eachSpec(func(_ *ast.GenDecl, spec ast.Spec) {
		x, ok := spec.(*ast.TypeSpec)
		if !ok || x.Name.Name != owner {
			return
		}
		body, ok := x.Type.(*ast.StructType)
		if !ok {
			return
		}
		for _, f := range body.Fields.List {
			for _, ident := range f.Names {
				if ident.Name == name {
					text = joinComment(f.Doc, f.Comment)
				}
			}
		}
	})
	return text
}

// listConstants returns the values of the constants of a type of strings.
func (s goSource) listConstants(name string) (values []string) {
	s.eachSpec(func(_ *ast.GenDecl, spec ast.Spec) {
		x, ok := spec.(*ast.ValueSpec)
		if !ok {
			return
		}
		of, ok := x.Type.(*ast.Ident)
		if !ok || of.Name != name {
			return
		}
		for _, v := range x.Values {
			if lit, ok := v.(*ast.BasicLit); ok {
				if text, err := strconv.Unquote(lit.Value); err == nil && text != "" {
					values = append(values, text)
				}
			}
		}
	})
	return values
}

// joinComment returns comments as one line that begins with a capital letter.
func joinComment(groups ...*ast.CommentGroup) string {
	var parts []string
	for _, g := range groups {
		if text := strings.Join(strings.Fields(g.Text()), " "); text != "" {
			parts = append(parts, text)
		}
	}
	text := strings.Join(parts, ". ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// Descriptions reach fields of embedded structs, lists and references.
func TestDescribe(t *testing.T) {
	doc := Document("test")
	schemas := doc.Components.Schemas.Map()
	for _, tt := range []struct{ schema, property string }{
		{"Spec", "image"}, {"Spec", "network"}, {"Status", "state"}, {"Mount", "type"}, {"Command", "args"},
	} {
		if p := schemas[tt.schema].Properties[tt.property]; p == nil || p.Description == "" {
			t.Errorf("%s.%s has no description", tt.schema, tt.property)
		}
	}
	enum := func(schema, property string) []any { return schemas[schema].Properties[property].Enum }
	if len(enum("Status", "state")) < 5 || len(enum("Mount", "type")) < 2 || len(enum("Network", "mode")) < 4 {
		t.Errorf("enums: %v, %v, %v", enum("Status", "state"), enum("Mount", "type"), enum("Network", "mode"))
	}
	described, all := 0, 0
	for _, s := range schemas {
		for _, p := range s.Properties {
			if all++; p.Description != "" {
				described++
			}
		}
	}
	if described != all || all < 400 {
		t.Errorf("%d of %d properties have a description", described, all)
	}
}
