package api

import (
	"errors"
	"io"
	"net/http"
	"os"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// copyBody copies src to a response. If src is a file it lets the connection copy it, else it uses
// a large buffer.
func copyBody(w http.ResponseWriter, src io.Reader) (int64, error) {
	if rf, ok := w.(io.ReaderFrom); ok && isFile(src) {
		return rf.ReadFrom(src)
	}
	return wire.CopyBuffer(w, src)
}

// isFile reports whether src is an *os.File, or limits one.
func isFile(src io.Reader) bool {
	if limited, ok := src.(*io.LimitedReader); ok {
		src = limited.R
	}
	_, ok := src.(*os.File)
	return ok
}

// uploadBody returns the body of a request that is not JSON, limited to Options.MaxUpload.
func (h *Handler) uploadBody(w http.ResponseWriter, r *http.Request) io.Reader {
	body := r.Body
	if h.opts.MaxUpload > 0 {
		body = http.MaxBytesReader(w, body, h.opts.MaxUpload)
	}
	return uploadReader{body}
}

// An uploadReader is a request body with a large buffer for io.Copy.
type uploadReader struct{ r io.Reader }

func (u uploadReader) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if err != nil && err != io.EOF {
		err = uploadError(err)
	}
	return n, err
}

func (u uploadReader) WriteTo(w io.Writer) (int64, error) {
	return wire.CopyBuffer(w, struct{ io.Reader }{u})
}

// uploadError returns the error for a body that could not be read.
func uploadError(err error) error {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return statusError{invalidError("the body is larger than %d bytes", large.Limit), http.StatusRequestEntityTooLarge}
	}
	return atoll.Errorf("", "", atoll.ErrUnavailable, "upload interrupted: %w", err)
}

// preferTooLarge returns the statusError in the chain of err, else err.
func preferTooLarge(err error) error {
	if s, ok := errors.AsType[statusError](err); ok {
		return s
	}
	return err
}
