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

func schema[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(err) // of our own types
	}
	neverNull(s)
	return s
}

// neverNull takes null out of the types of s: some models' services refuse a whole
// request for one, and what is not there is left out.
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

// decode reads input, strictly: what a model gets wrong it has to be told.
func decode(s *jsonschema.Schema, input []byte, in any) error {
	if len(bytes.TrimSpace(input)) == 0 {
		input = []byte("{}")
	}
	bad := func(format string, args ...any) error { return atoll.Errorf("", "", atoll.ErrInvalid, format, args...) }
	if !utf8.Valid(input) { // the decoder would replace what is none
		return bad("the input is not UTF-8: send what is no text as base64")
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(input, &given); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return bad("the input is %s: it must be a JSON object", article(wrong.Value))
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
			given[name], changed = strconv.AppendInt(nil, int64(n), 10), true // 60.0 and 6e1 are integers as well
		}
	}
	for _, name := range s.Required {
		if text := string(given[name]); text == "" || text == "null" {
			return bad("the input %q is missing: %s", name, s.Properties[name].Description)
		}
	}
	if changed {
		input, _ = json.Marshal(given) // which it was made from
	}
	if err := json.Unmarshal(input, in); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return bad("%s is %s: it must be %s", inputOf(s, wrong), article(wrong.Value), jsonType(wrong.Type))
		}
		return bad("the input: %w", err)
	}
	return nil
}

// inputOf names what has the wrong type: without the Go structs that are embedded on
// the way, and as a part of an input that is a table or a list.
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

func article(noun string) string {
	if strings.HasPrefix(noun, "array") || strings.HasPrefix(noun, "object") {
		return "an " + noun
	}
	return "a " + noun
}

// jsonType is what a value of a Go type is called in JSON.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list of strings"
	case reflect.Map:
		return "a table of strings"
	}
	return "a whole number"
}
