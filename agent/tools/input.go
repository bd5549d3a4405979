package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/seed46cd37a8/atoll"
)

func schemaFor[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(err) // our own types are valid
	}
	neverNull(s)
	return s
}

// neverNull removes null from the types of s: some model services reject it, and
// missing values are omitted anyway.
func neverNull(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if i := slices.Index(s.Types, "null"); i >= 0 && len(s.Types) == 2 {
		s.Type, s.Types = s.Types[1-i], nil
	}
	neverNull(s.Items)
	for _, p := range s.Properties {
		neverNull(p)
	}
}

// decodeInput decodes input strictly, so that a model learns of its mistakes.
func decodeInput(s *jsonschema.Schema, input []byte, in any) error {
	if len(bytes.TrimSpace(input)) == 0 {
		input = []byte("{}")
	}
	bad := func(format string, args ...any) error { return atoll.Errorf("", "", atoll.ErrInvalid, format, args...) }
	if !utf8.Valid(input) { // the decoder would replace invalid bytes
		return bad("the input is not UTF-8: send other data as base64")
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(input, &given); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return bad("the input is %s: it must be a JSON object", withArticle(wrong.Value))
		}
		return bad("the input is not a JSON object: %w", err)
	}
	changed := false
	for name, text := range given {
		p := s.Properties[name]
		if p == nil {
			return bad("there is no input %q: it takes %s", name, strings.Join(s.PropertyOrder, ", "))
		}
		if n, err := strconv.ParseFloat(string(text), 64); p.Type == "integer" && err == nil && n == math.Trunc(n) && math.Abs(n) < 1<<53 {
			given[name], changed = strconv.AppendInt(nil, int64(n), 10), true // 60.0 and 6e1 are integers, too
		}
	}
	for _, name := range s.Required {
		if text := string(given[name]); text == "" || text == "null" {
			p := s.Properties[name]
			about := p.Description
			if len(p.Enum) > 0 {
				about += ": " + orList(enumNames(p))
			}
			return bad("the input %q is missing: %s", name, about)
		}
	}
	if changed {
		input, _ = json.Marshal(given) // it was unmarshalled above
	}
	if err := json.Unmarshal(input, in); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return bad("%s is %s: it must be %s", inputOf(s, wrong), withArticle(wrong.Value), jsonType(wrong.Type))
		}
		return bad("the input: %w", err)
	}
	return nil
}

// enumNames returns the values that a schema allows.
func enumNames(s *jsonschema.Schema) (names []string) {
	for _, x := range s.Enum {
		names = append(names, fmt.Sprint(x))
	}
	return names
}

// inputOf names the input with the wrong type, without embedded Go structs; for a table
// or a list it tells that the wrong value is inside.
func inputOf(s *jsonschema.Schema, wrong *json.UnmarshalTypeError) string {
	for name := range strings.SplitSeq(wrong.Field, ".") {
		p := s.Properties[name]
		switch {
		case p == nil:
		case (p.Type == "object" || p.Type == "array") && wrong.Type.Kind() == reflect.String:
			return fmt.Sprintf("a value in the input %q", name)
		default:
			return fmt.Sprintf("the input %q", name)
		}
	}
	return "the input"
}

func withArticle(noun string) string {
	if strings.HasPrefix(noun, "array") || strings.HasPrefix(noun, "object") {
		return "an " + noun
	}
	return "a " + noun
}

// jsonType describes the JSON value of a Go type.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Struct {
			return "a list of objects"
		}
		return "a list of strings"
	case reflect.Map:
		return "a table of strings"
	}
	return "a whole number"
}
