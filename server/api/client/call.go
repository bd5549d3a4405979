package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
)

// A call is one request with a JSON reply.
type call struct {
	op, id       string // for errors that the client makes
	method, path string // method "" means GET
	query        url.Values
	body         any           // encoded as JSON unless nil
	reply        any           // receives the JSON reply unless nil
	replyLimit   int64         // largest reply in bytes; 0 means maxReply
	idempotent   bool          // safe to repeat; a GET always is
	noRetry      bool          // fail at once if no server answers
	minimal      bool          // the reply needs only the id
	undoTimeout  time.Duration // how long callUndoable waits for the server to undo it
}

// callServer sends a request and decodes the reply. It retries as Options.Patience allows. If
// ctx ends first it returns the error of ctx.
func (c *Client) callServer(ctx context.Context, q call) error {
	t := retrier{c: c}
	if q.noRetry {
		t.deadline = time.Now()
	}
	for {
		err := c.callOnce(ctx, q)
		if err == nil || !t.allowRetry(ctx, err, q.isRepeatable()) {
			return ctxErr(ctx, err)
		}
	}
}

// isRepeatable reports whether the request is safe to repeat.
func (q call) isRepeatable() bool {
	return q.idempotent || q.method == "" || q.method == http.MethodGet
}

func (c *Client) callOnce(ctx context.Context, q call) error {
	var body io.Reader
	if q.body != nil {
		b, err := json.Marshal(q.body)
		if err != nil {
			return atoll.E(q.op, q.id, atoll.ErrInvalid, err)
		}
		body = bytes.NewReader(b)
	}
	ctx, cancel := c.joinContext(ctx)
	defer cancel()
	resp, err := c.sendRequest(ctx, q, body, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.readReply(ctx, resp, q)
}

// sendRequest sends a request and returns its successful response. The caller must close the body,
// which is readable until ctx ends.
func (c *Client) sendRequest(ctx context.Context, q call, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := c.newRequest(ctx, q, body)
	if err != nil {
		return nil, err
	}
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, v := range header {
		req.Header[name] = v
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.wrapConnError(ctx, q.op, q.id, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, ctxErr(ctx, c.backOffIfClosing(resp, readError(resp, q.op, q.id)))
	}
	return resp, nil
}

// newRequest returns a request that ends with ctx or the client.
func (c *Client) newRequest(ctx context.Context, q call, body io.Reader) (*http.Request, error) {
	if c.ctx.Err() != nil { // check this first: ctx may have ended with the client
		return nil, atoll.E(q.op, q.id, atoll.ErrUnavailable, errClientClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	u := c.pickEndpoint().base + q.path
	if len(q.query) > 0 {
		u += "?" + q.query.Encode()
	}
	method := q.method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, atoll.E(q.op, q.id, atoll.ErrInvalid, err)
	}
	if c.opts.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.opts.Token)
	}
	if id := wire.RequestID(ctx); id != "" {
		req.Header.Set(wire.RequestIDHeader, id)
	}
	if q.minimal {
		req.Header.Set(wire.PreferHeader, wire.PreferMinimal)
	}
	c.opts.Inject(ctx, req.Header)
	return req, nil
}

// readReply decodes the reply of a successful call.
func (c *Client) readReply(ctx context.Context, resp *http.Response, q call) error {
	if q.reply == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody)) // lets http.Transport reuse the connection
		return nil
	}
	most := cmp.Or(q.replyLimit, maxReply)
	reply, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if int64(len(reply)) > most {
		return atoll.Errorf(q.op, q.id, atoll.ErrExhausted, "the server's response is larger than %s", atoll.Bytes(most))
	}
	if err == nil {
		err = json.Unmarshal(reply, q.reply)
	}
	return c.wrapConnError(ctx, q.op, q.id, err)
}
