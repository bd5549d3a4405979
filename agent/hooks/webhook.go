package hooks

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// WebhookOptions say how a webhook is called. The zero value is ready.
type WebhookOptions struct {
	// Token gives the bearer token, and Key what requests are signed with; nil means
	// none. They are asked for each time, so that secrets can be changed, and are kept no
	// longer than that takes.
	Token, Key func() (string, error)
	// Timeout bounds each try; 0 means DefaultWebhookTimeout.
	Timeout time.Duration
	// Tries is how often it is tried; 0 means DefaultWebhookTries.
	Tries int
	// Backoff is waited for, about, after the first try that failed, and twice as long
	// after each other; 0 means DefaultWebhookBackoff.
	Backoff time.Duration
	// PlainHTTP allows http to other machines than this one: all who are on the way can
	// read the messages.
	PlainHTTP bool
	// Transport is how requests get there; nil means http.DefaultTransport.
	Transport http.RoundTripper
}

// The bounds of webhooks unless WebhookOptions say otherwise.
const (
	DefaultWebhookTimeout = 10 * time.Second
	DefaultWebhookTries   = 3
	DefaultWebhookBackoff = 250 * time.Millisecond
)

// maxWebhookBackoff is the longest pause between two tries.
const maxWebhookBackoff = 10 * time.Second

// Headers of webhooks. The signature is "t=SECONDS,v1=HEX", HEX being the HMAC-SHA256
// of SECONDS, a dot and the body. The delivery is the same for each try of one.
const (
	SignatureHeader = "Atoll-Signature"
	DeliveryHeader  = "Atoll-Delivery"
)

// A Delivery is the JSON that a webhook is sent. There is nothing secret in it but what
// was said.
type Delivery struct {
	ID           string            `json:"id"`   // the same for each try
	Hook         string            `json:"hook"` // like "OnMessage"
	Time         time.Time         `json:"time"` // of the first try
	Conversation string            `json:"conversation_id"`
	Account      string            `json:"account"`
	Agent        string            `json:"agent_id,omitempty"`
	Sandbox      *agent.Sandbox    `json:"sandbox,omitempty"`
	Message      *agent.Message    `json:"message,omitempty"`     // of OnMessage
	TokenUsage   *agent.TokenUsage `json:"token_usage,omitempty"` // of OnStreamFinish
}

// Webhook returns a hook that POSTs a Delivery to a URL, and wants 2xx. What may pass is
// tried again: a connection that fails, a timeout, 429 and 5xx. A receiver that has seen
// the id of a delivery already should answer 2xx and do nothing. Redirects are followed
// on the same host only, and only those that repeat the request (307 and 308).
//
// Errors, here and of the hook, name the host and nothing else of the URL, which may be
// a secret itself. Kinds: ErrInvalid (the URL; of the hook: the receiver refused it);
// of the hook: ErrDenied (401 and 403), ErrExhausted (429), ErrTimeout, ErrUnavailable
// (another failure that may pass), those of the secrets.
func Webhook(to string, opts WebhookOptions) (HookFunc, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, atoll.Errorf("webhook", "", atoll.ErrInvalid, "the URL is not one: write it like https://host/path")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Fragment != "":
		return nil, atoll.Errorf("webhook", u.Host, atoll.ErrInvalid, "write the URL like https://host/path")
	case u.User != nil:
		return nil, atoll.Errorf("webhook", u.Host, atoll.ErrInvalid, "a URL has no user or password: give a token, or a key to sign with")
	case u.Scheme == "http" && !opts.PlainHTTP && !isLoopback(u.Hostname()):
		return nil, atoll.Errorf("webhook", u.Host, atoll.ErrInvalid, "http to another machine can be read on the way: write https, or allow it (plain_http)")
	case opts.Tries < 0 || opts.Timeout < 0 || opts.Backoff < 0:
		return nil, atoll.Errorf("webhook", u.Host, atoll.ErrInvalid, "tries and times must be positive")
	}
	opts.Timeout = cmp.Or(opts.Timeout, DefaultWebhookTimeout)
	opts.Tries = cmp.Or(opts.Tries, DefaultWebhookTries)
	opts.Backoff = cmp.Or(opts.Backoff, DefaultWebhookBackoff)
	w := &webhook{url: u, opts: opts, client: &http.Client{Transport: opts.Transport, CheckRedirect: sameRequest}}
	return w.deliver, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// sameRequest lets a redirect through that is the same request to the same host.
func sameRequest(req *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case req.Method != first.Method:
		return errors.New("redirected in a way that loses the request: only 307 and 308 are followed")
	case req.URL.Host != first.URL.Host || req.URL.Scheme != first.URL.Scheme:
		return errors.New("redirected to another host: write that one's URL")
	case len(via) > 3:
		return errors.New("redirected too often")
	}
	return nil
}

type webhook struct {
	url    *url.URL
	opts   WebhookOptions
	client *http.Client
}

func (w *webhook) deliver(ctx context.Context, data *HookData) error {
	d := Delivery{
		ID: atoll.NewID(), Hook: data.Hook, Time: time.Now().UTC(),
		Conversation: data.ConversationID, Account: data.Account, Agent: data.Agent,
		Sandbox: data.SandboxInfo, Message: data.Message, TokenUsage: data.TokenUsage,
	}
	body, err := json.Marshal(d)
	if err != nil {
		return atoll.E("webhook", w.url.Host, atoll.ErrInvalid, err)
	}
	for try := 1; ; try++ {
		again, err := w.try(ctx, d.ID, body)
		if err == nil || !again || try >= w.opts.Tries || ctx.Err() != nil {
			return err
		}
		data.logger().Debug("webhook is tried again", "host", w.url.Host, "try", try, "err", err)
		if pause(ctx, w.opts.Backoff, try) != nil {
			return err // it says more than that time is up
		}
	}
}

// pause waits for longer after each try; somewhat differently, so that many do not come
// back together.
func pause(ctx context.Context, backoff time.Duration, try int) error {
	d := min(backoff<<min(try-1, 16), maxWebhookBackoff)
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// try sends the request once. again means that another try may succeed.
func (w *webhook) try(ctx context.Context, id string, body []byte) (again bool, err error) {
	within, cancel := context.WithTimeout(ctx, w.opts.Timeout)
	defer cancel()
	req, err := w.request(within, id, body)
	if err != nil {
		return false, err
	}
	res, err := w.client.Do(req)
	if err != nil {
		if whole, ok := errors.AsType[*url.Error](err); ok {
			err = whole.Err // without the URL
		}
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case within.Err() != nil:
			return true, atoll.Errorf("webhook", w.url.Host, atoll.ErrTimeout, "no answer within %s", w.opts.Timeout)
		case res != nil: // a redirect that is not followed
			return false, atoll.E("webhook", w.url.Host, atoll.ErrInvalid, err)
		}
		return true, atoll.E("webhook", w.url.Host, atoll.ErrUnavailable, err)
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be used again
	return w.judge(res.StatusCode)
}

// request makes a request, with the secrets that belong to it.
func (w *webhook) request(ctx context.Context, id string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, atoll.E("webhook", w.url.Host, atoll.ErrInvalid, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "atoll")
	req.Header.Set(DeliveryHeader, id)
	if w.opts.Token != nil {
		token, err := w.opts.Token()
		if err != nil {
			return nil, atoll.E("webhook", w.url.Host, atoll.KindOf(err), err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if w.opts.Key != nil {
		key, err := w.opts.Key()
		if err != nil {
			return nil, atoll.E("webhook", w.url.Host, atoll.KindOf(err), err)
		}
		req.Header.Set(SignatureHeader, Sign(key, time.Now(), body))
	}
	return req, nil
}

// Sign is the signature of a body that is sent at a time, for those who check it.
func Sign(key string, at time.Time, body []byte) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(seconds + "."))
	mac.Write(body)
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

func (w *webhook) judge(status int) (again bool, err error) {
	kind := atoll.ErrInvalid
	switch {
	case status/100 == 2:
		return false, nil
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		kind = atoll.ErrDenied
	case status == http.StatusTooManyRequests:
		kind, again = atoll.ErrExhausted, true
	case status/100 == 5:
		kind, again = atoll.ErrUnavailable, true
	}
	return again, atoll.E("webhook", w.url.Host, kind, fmt.Errorf("it answered %d %s", status, http.StatusText(status)))
}
