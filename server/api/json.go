package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
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
	err = wire.DecodeStrict(b, v)
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
