package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// DecodeStrict decodes one JSON value from b into v. Unknown fields, wrong types, trailing data and
// invalid UTF-8 are ErrInvalid, and the error names them. It returns io.EOF if b is empty.
func DecodeStrict(b []byte, v any) error {
	if !utf8.Valid(b) { // the decoder would replace it
		return newSyntaxError("JSON must be UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return explainJSON(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return newSyntaxError("unexpected data after the JSON value (at byte %d)", dec.InputOffset())
	}
	return nil
}

// explainJSON returns the error of a JSON decoder in terms of the body.
func explainJSON(err error) error {
	if err == io.EOF {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return newSyntaxError("the JSON ends too early: a bracket or a quote is missing")
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return newSyntaxError("%s: must be %s, got %s", fieldName(wrong.Field), jsonType(wrong.Type), wrong.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return newSyntaxError("unknown field %s", name)
	}
	return newSyntaxError("%s", strings.TrimPrefix(err.Error(), "json: "))
}

// fieldName returns the path of a field without the names of embedded Go structs, which begin with
// a capital letter.
func fieldName(path string) string {
	parts := slices.DeleteFunc(strings.Split(path, "."), func(s string) bool { return s == "" || s[0] >= 'A' && s[0] <= 'Z' })
	if len(parts) == 0 {
		return "the body"
	}
	return strings.Join(parts, ".")
}

// jsonType returns the name of a Go type's JSON form.
func jsonType(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[atoll.Duration]():
		return `text like "90s", or a number of seconds`
	case reflect.TypeFor[atoll.Signal]():
		return `text like "SIGTERM", or a number`
	}
	switch kind := t.Kind(); kind {
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.String:
		return "a string"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "a whole number (" + kind.String() + ")"
	}
}

// newSyntaxError returns the error of malformed JSON.
func newSyntaxError(format string, args ...any) error {
	return &atoll.Error{Kind: atoll.ErrInvalid, Err: fmt.Errorf(format, args...)}
}

// ASCIIJSON returns v as JSON in printable ASCII, for use in a header.
func ASCIIJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "{}"
	}
	var out []byte
	for _, r := range string(b) {
		switch {
		case ' ' <= r && r <= '~':
			out = append(out, byte(r))
		case r > 0xffff:
			r -= 0x10000
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return string(out)
}
