package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/seed46cd37a8/atoll"
)

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // every type that is sent can be marshalled
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client has gone
}

// decodeStrict reads b, which is one JSON value, into v: a field that v does not
// have, a wrong type, anything behind the value and what is not UTF-8 are
// ErrInvalid and named. It reports io.EOF when b is empty.
func decodeStrict(b []byte, v any) error {
	if !utf8.Valid(b) { // which the decoder would replace
		return invalid("JSON must be UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return explainJSON(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return invalid("there is something behind the JSON value (at byte %d)", dec.InputOffset())
	}
	return nil
}

// explainJSON says what is wrong with a body in words of its author's.
func explainJSON(err error) error {
	if err == io.EOF {
		return err
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return invalid("%s: must be %s, is %s", fieldName(wrong.Field), jsonType(wrong.Type), wrong.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return invalid("unknown field %s", name)
	}
	return invalid("%s", strings.TrimPrefix(err.Error(), "json: "))
}

// fieldName is a field as its author wrote it: without the names of Go structs
// that are embedded on the way, which begin with a capital.
func fieldName(path string) string {
	parts := slices.DeleteFunc(strings.Split(path, "."), func(s string) bool { return s == "" || s[0] >= 'A' && s[0] <= 'Z' })
	if len(parts) == 0 {
		return "the body"
	}
	return strings.Join(parts, ".")
}

// jsonType is what a value of a Go type is called in JSON.
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

func invalid(format string, args ...any) error {
	return &atoll.Error{Kind: atoll.ErrInvalid, Err: fmt.Errorf(format, args...)}
}

// body decodes the request's JSON body. An empty one leaves v as it is, unless
// it is required.
func (h *Handler) body(w http.ResponseWriter, r *http.Request, v any, required bool) error {
	return h.bodyUpTo(h.opts.MaxBody, w, r, v, required)
}

func (h *Handler) bodyUpTo(limit int64, w http.ResponseWriter, r *http.Request, v any, required bool) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return uploadError(err)
	}
	err = decodeStrict(b, v)
	if err == io.EOF {
		if required {
			return invalid("the body is empty: a JSON object is needed")
		}
		return nil
	}
	return err
}

// query reads the request's parameters, which the route has declared. The first
// one that makes no sense is in err.
type query struct {
	values url.Values
	err    error
}

func queryOf(r *http.Request) *query { return &query{values: r.URL.Query()} }

func (q *query) str(name string) string { return q.values.Get(name) }

func (q *query) all(name string) []string { return q.values[name] }

func (q *query) bool(name string) bool {
	if !q.values.Has(name) {
		return false
	}
	v := q.str(name)
	b, err := strconv.ParseBool(v)
	if err != nil {
		q.fail(invalid("parameter %s: %q is not true or false", name, v))
	}
	return b
}

func (q *query) int(name string, otherwise int64) int64 {
	if !q.values.Has(name) {
		return otherwise
	}
	v := q.str(name)
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		q.fail(invalid("parameter %s: %q is not a number", name, v))
	}
	return n
}

// mode reads permission bits in octal.
func (q *query) mode(name string) uint32 {
	if !q.values.Has(name) {
		return 0
	}
	v := q.str(name)
	n, err := strconv.ParseUint(v, 8, 12)
	if err != nil {
		q.fail(invalid("parameter %s: %q is not a mode like 0644", name, v))
	}
	return uint32(n)
}

func (q *query) fail(err error) {
	if q.err == nil {
		q.err = err
	}
}
