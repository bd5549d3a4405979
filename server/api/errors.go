package api

import (
	"net/http"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

var statusByKind = map[atoll.Kind]int{
	atoll.ErrInvalid:         http.StatusBadRequest,
	atoll.ErrDenied:          http.StatusForbidden,
	atoll.ErrNotFound:        http.StatusNotFound,
	atoll.ErrNotExist:        http.StatusNotFound,
	atoll.ErrAlreadyExists:   http.StatusConflict,
	atoll.ErrConflict:        http.StatusConflict,
	atoll.ErrStopped:         http.StatusConflict,
	atoll.ErrExecFailed:      http.StatusUnprocessableEntity,
	atoll.ErrCommandNotFound: http.StatusUnprocessableEntity,
	atoll.ErrExhausted:       http.StatusTooManyRequests,
	atoll.ErrInternal:        http.StatusInternalServerError,
	atoll.ErrUnsupported:     http.StatusNotImplemented,
	atoll.ErrUnavailable:     http.StatusServiceUnavailable,
	atoll.ErrTimeout:         http.StatusGatewayTimeout,
}

// A statusError has an HTTP status that differs from that of its kind.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// writeError sends err as the response.
func writeError(w http.ResponseWriter, requestID string, err error) {
	status, ok := statusByKind[atoll.KindOf(err)]
	if !ok {
		status = http.StatusInternalServerError
	}
	if s, ok := err.(statusError); ok {
		status, err = s.status, s.error
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="atoll"`)
	}
	body := wire.EncodeError(err, requestID)
	if body.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(body.RetryAfter))
	}
	writeJSON(w, status, body)
}
