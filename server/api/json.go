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

// writeJSON sends v as the response.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // a programming error: all reply types can be marshalled
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails if the client has disconnected
}

// decodeStrict decodes one JSON value from b into v. Unknown fields, wrong types, trailing data and
// invalid UTF-8 are ErrInvalid, and the error names them. It returns io.EOF if b is empty.
func decodeStrict(b []byte, v any) error {
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

func invalidError(format string, args ...any) error {
	return &atoll.Error{Kind: atoll.ErrInvalid, Err: fmt.Errorf(format, args...)}
}

// decodeBody decodes the JSON body of a request into v. An empty body leaves v unchanged, or is
// ErrInvalid if required is set.
func (h *Handler) decodeBody(w http.ResponseWriter, r *http.Request, v any, required bool) error {
	return h.decodeBodyUpTo(h.opts.MaxBody, w, r, v, required)
}

// decodeBodyUpTo is decodeBody with a limit in bytes.
func (h *Handler) decodeBodyUpTo(limit int64, w http.ResponseWriter, r *http.Request, v any, required bool) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return uploadError(err)
	}
	err = decodeStrict(b, v)
	if err == io.EOF {
		if required {
			return invalidError("the body is empty: send a JSON object")
		}
		return nil
	}
	return err
}

// queryParams parses the query parameters of a request. err has the first failure.
type queryParams struct {
	values url.Values
	err    error
}

func parseQuery(r *http.Request) *queryParams { return &queryParams{values: r.URL.Query()} }

func (q *queryParams) getString(name string) string { return q.values.Get(name) }

func (q *queryParams) getStrings(name string) []string { return q.values[name] }

func (q *queryParams) getBool(name string) bool {
	if !q.values.Has(name) {
		return false
	}
	v := q.getString(name)
	b, err := strconv.ParseBool(v)
	if err != nil {
		q.setError(invalidError("parameter %s: %q is not true or false", name, v))
	}
	return b
}

func (q *queryParams) getInt(name string, fallback int64) int64 {
	if !q.values.Has(name) {
		return fallback
	}
	v := q.getString(name)
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		q.setError(invalidError("parameter %s: %q is not a number", name, v))
	}
	return n
}

// getMode returns permission bits given in octal.
func (q *queryParams) getMode(name string) uint32 {
	if !q.values.Has(name) {
		return 0
	}
	v := q.getString(name)
	n, err := strconv.ParseUint(v, 8, 12)
	if err != nil {
		q.setError(invalidError("parameter %s: %q is not a mode like 0644", name, v))
	}
	return uint32(n)
}

// setError sets the error unless there is one.
func (q *queryParams) setError(err error) {
	if q.err == nil {
		q.err = err
	}
}

// newSyntaxError returns the error of malformed JSON.
func newSyntaxError(format string, args ...any) error {
	return &atoll.Error{Kind: atoll.ErrInvalid, Err: fmt.Errorf(format, args...)}
}
