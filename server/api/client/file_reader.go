package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"strconv"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

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
	var fi wire.FileInfo
	err = json.Unmarshal([]byte(resp.Header.Get(wire.FileInfoHeader)), &fi)
	if now := fi.ToFileInfo(); err != nil || now.Size != r.info.Size || !now.Modified.Equal(r.info.Modified) {
		resp.Body.Close()
		return atoll.Errorf("read", r.q.id, atoll.ErrUnavailable, "%w, and the file changed before the client reconnected", causeOf(lost))
	}
	r.body.Close()
	r.body = resp.Body
	return nil
}

// sendRetrying sends a repeatable request and retries as Options.Patience allows.
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
	n, err := wire.CopyBuffer(w, struct{ io.Reader }{r})
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
