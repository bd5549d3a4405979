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

// copyBody copies src to an answer. It lets the connection copy a file by
// itself where it can, and else uses a large buffer.
func copyBody(w http.ResponseWriter, src io.Reader) (int64, error) {
	if rf, ok := w.(io.ReaderFrom); ok && isFile(src) {
		return rf.ReadFrom(src)
	}
	return copyBuffer(w, src)
}

// isFile reports whether src is a file of the operating system's.
func isFile(src io.Reader) bool {
	if limited, ok := src.(*io.LimitedReader); ok {
		src = limited.R
	}
	_, ok := src.(*os.File)
	return ok
}

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// copyBuffer is io.Copy with a large buffer, whatever dst and src can do.
func copyBuffer(dst io.Writer, src io.Reader) (int64, error) {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf[:])
}

// asciiJSON is v as JSON that may stand in a header: printable ASCII only.
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

// A fileReader is a file that is being received.
type fileReader struct {
	body   io.ReadCloser
	cancel context.CancelFunc
	c      *Client
	q      call
	life   context.Context // of all its requests

	info   atoll.FileInfo // as it was at first
	offset int64          // of the next byte
	trial  trial
}

func (r *fileReader) Read(p []byte) (int, error) {
	for {
		n, err := r.body.Read(p)
		r.offset += int64(n)
		if n > 0 {
			r.trial = trial{c: r.c}
		}
		if err = r.explain(err); n > 0 || fateOf(err) == final {
			if n > 0 && fateOf(err) != final {
				err = nil // which comes again
			}
			return n, err
		}
		if again := r.reopen(err); again != nil {
			return 0, again
		}
	}
}

// reopen goes on over another connection where one broke off, if the file is the same.
func (r *fileReader) reopen(lost error) error {
	if !r.trial.again(r.life, lost, r.info.Type == atoll.TypeFile && r.info.Size > 0) {
		return lost
	}
	q := r.q
	q.query = maps.Clone(q.query)
	q.query.Set("offset", strconv.FormatInt(r.offset, 10))
	resp, err := r.c.sendAgain(r.life, q)
	if err != nil {
		return err
	}
	var fi fileInfo
	err = json.Unmarshal([]byte(resp.Header.Get(FileInfoHeader)), &fi)
	if now := fi.info(); err != nil || now.Size != r.info.Size || !now.Modified.Equal(r.info.Modified) {
		resp.Body.Close()
		return atoll.Errorf("read", r.q.id, atoll.ErrUnavailable, "%w, and the file was changed before it could be read on", causeOf(lost))
	}
	r.body.Close()
	r.body = resp.Body
	return nil
}

// sendAgain is send for what may be repeated.
func (c *Client) sendAgain(ctx context.Context, q call) (*http.Response, error) {
	for t := (trial{c: c}); ; {
		resp, err := c.send(ctx, q, nil, nil)
		if err == nil || !t.again(ctx, err, true) {
			return resp, err
		}
	}
}

// WriteTo lets io.Copy use a large buffer.
func (r *fileReader) WriteTo(w io.Writer) (int64, error) {
	n, err := copyBuffer(w, struct{ io.Reader }{r})
	return n, err
}

func (r *fileReader) explain(err error) error {
	if err == nil || err == io.EOF || errors.Is(err, http.ErrBodyReadAfterClose) {
		return err
	}
	return r.c.fault(context.Background(), "read", r.q.id, err)
}

func (r *fileReader) Close() error {
	err := r.body.Close()
	r.cancel()
	return err
}

// upload is the request's body where it is not JSON.
func (h *Handler) upload(w http.ResponseWriter, r *http.Request) io.Reader {
	body := r.Body
	if h.opts.MaxUpload > 0 {
		body = http.MaxBytesReader(w, body, h.opts.MaxUpload)
	}
	return uploadReader{body}
}

// An uploadReader is a body that io.Copy reads with a large buffer.
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

// uploadError says why a body broke off.
func uploadError(err error) error {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return statusError{invalid("the body is larger than %d bytes", large.Limit), http.StatusRequestEntityTooLarge}
	}
	return atoll.Errorf("", "", atoll.ErrUnavailable, "the upload broke off: %w", err)
}

// tooLarge prefers the status of a body that was too large to what it led to.
func tooLarge(err error) error {
	if s, ok := errors.AsType[statusError](err); ok {
		return s
	}
	return err
}
