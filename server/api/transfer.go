package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strconv"
	"sync"

	"github.com/seed46cd37a8/atoll"
)

// copyBody copies src to a response. If src is a file it lets the connection copy it, else it uses
// a large buffer.
func copyBody(w http.ResponseWriter, src io.Reader) (int64, error) {
	if rf, ok := w.(io.ReaderFrom); ok && isFile(src) {
		return rf.ReadFrom(src)
	}
	return copyBuffer(w, src)
}

// isFile reports whether src is an *os.File, or limits one.
func isFile(src io.Reader) bool {
	if limited, ok := src.(*io.LimitedReader); ok {
		src = limited.R
	}
	_, ok := src.(*os.File)
	return ok
}

// copySize is the size of the buffers that copy files.
const copySize = 256 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// copyBuffer is io.Copy with a large buffer. It ignores io.ReaderFrom and io.WriterTo.
func copyBuffer(dst io.Writer, src io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf[:])
}

// asciiJSON returns v as JSON in printable ASCII, for use in a header.
func asciiJSON(v any) string {
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

// A fileReader reads a file from the server. It reconnects if the connection breaks.
type fileReader struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	c      *Client
	q      call
	ctx    context.Context // bounds all its requests

	info   atoll.FileInfo // at the start
	offset int64          // offset of the next byte
	retry  retrier
}

func (r *fileReader) Read(p []byte) (int, error) {
	for {
		n, err := r.body.Read(p)
		r.offset += int64(n)
		if n > 0 {
			r.retry = retrier{c: r.c}
		}
		if err = r.wrapReadError(err); n > 0 || outcomeOf(err) == outcomeFinal {
			if n > 0 && outcomeOf(err) != outcomeFinal {
				err = nil // the next Read returns it
			}
			return n, err
		}
		if err := r.reopenFile(err); err != nil {
			return 0, err
		}
	}
}

// reopenFile continues over another connection if the file is unchanged. lost is the error of the
// last connection.
func (r *fileReader) reopenFile(lost error) error {
	if !r.retry.allowRetry(r.ctx, lost, r.info.Type == atoll.TypeFile && r.info.Size > 0) {
		return lost
	}
	q := r.q
	q.query = maps.Clone(q.query)
	q.query.Set("offset", strconv.FormatInt(r.offset, 10))
	resp, err := r.c.sendRetrying(r.ctx, q)
	if err != nil {
		return err
	}
	var fi fileInfo
	err = json.Unmarshal([]byte(resp.Header.Get(FileInfoHeader)), &fi)
	if now := fi.ToFileInfo(); err != nil || now.Size != r.info.Size || !now.Modified.Equal(r.info.Modified) {
		resp.Body.Close()
		return atoll.Errorf("read", r.q.id, atoll.ErrUnavailable, "%w, and the file changed before the client reconnected", causeOf(lost))
	}
	r.body.Close()
	r.body = resp.Body
	return nil
}

// sendRetrying sends a repeatable request and retries as ClientOptions.Patience allows.
func (c *Client) sendRetrying(ctx context.Context, q call) (*http.Response, error) {
	for t := (retrier{c: c}); ; {
		resp, err := c.sendRequest(ctx, q, nil, nil)
		if err == nil || !t.allowRetry(ctx, err, true) {
			return resp, err
		}
	}
}

// WriteTo implements io.WriterTo, so that io.Copy uses a large buffer.
func (r *fileReader) WriteTo(w io.Writer) (int64, error) {
	n, err := copyBuffer(w, struct{ io.Reader }{r})
	return n, err
}

func (r *fileReader) wrapReadError(err error) error {
	if err == nil || err == io.EOF || errors.Is(err, http.ErrBodyReadAfterClose) {
		return err
	}
	return r.c.wrapConnError(context.Background(), "read", r.q.id, err)
}

func (r *fileReader) Close() error {
	err := r.body.Close()
	r.cancel()
	return err
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
	return copyBuffer(w, struct{ io.Reader }{u})
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
