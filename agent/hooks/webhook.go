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
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/internal/retry"
)

// WebhookOptions configure a webhook. The zero value is ready to use.
type WebhookOptions struct {
	// Token returns the bearer token, and Key the key that signs requests; nil means
	// none. Each delivery calls them again, so secrets can change, and forgets the
	// results afterwards.
	Token, Key func() (string, error)
	// Timeout bounds each attempt; 0 means DefaultWebhookTimeout.
	Timeout time.Duration
	// Tries is the number of attempts; 0 means DefaultWebhookTries.
	Tries int
	// Backoff is the approximate wait after the first failed attempt; it doubles after
	// each further one. 0 means DefaultWebhookBackoff.
	Backoff time.Duration
	// PlainHTTP allows http to other machines: everyone on the network path can read
	// the messages.
	PlainHTTP bool
	// Transport sends the requests; nil means http.DefaultTransport.
	Transport http.RoundTripper
}

// The default bounds of webhooks.
const (
	DefaultWebhookTimeout = 10 * time.Second
	DefaultWebhookTries   = 3
	DefaultWebhookBackoff = 250 * time.Millisecond
)

// maxWebhookBackoff is the longest wait between two attempts.
const maxWebhookBackoff = 10 * time.Second

// Headers of webhooks. The signature is "t=SECONDS,v1=HEX", where HEX is the
// HMAC-SHA256 of SECONDS, a dot and the body. All attempts of a delivery have the same
// delivery id.
const (
	SignatureHeader = "Atoll-Signature"
	DeliveryHeader  = "Atoll-Delivery"
)

// A Delivery is the JSON body of a webhook. It contains no secrets besides the
// messages.
type Delivery struct {
	ID           string            `json:"id"`   // the same for each attempt
	Hook         string            `json:"hook"` // like "OnMessage"
	Time         time.Time         `json:"time"` // of the first attempt
	Conversation string            `json:"conversation_id"`
	Account      string            `json:"account"`
	Agent        string            `json:"agent_id,omitempty"`
	Sandbox      *agent.Sandbox    `json:"sandbox,omitempty"`
	Message      *agent.Message    `json:"message,omitempty"`     // of OnMessage
	TokenUsage   *agent.TokenUsage `json:"token_usage,omitempty"` // of OnStreamFinish
}

// Webhook returns a hook that POSTs a Delivery to a URL, and expects 2xx. It tries
// again after errors that may pass: a failed connection, a timeout, 429 and 5xx. A
// receiver that has already seen the id of a delivery should answer 2xx and do nothing.
// It follows redirects on the same host only, and only those that repeat the request
// (307 and 308).
//
// Errors, here and of the hook, name only the host of the URL, since the URL may be a
// secret itself. Kinds: ErrInvalid (the URL; of the hook: the receiver refused it); of
// the hook: ErrDenied (401 and 403), ErrExhausted (429), ErrTimeout, ErrUnavailable
// (another failure that may pass), and those of the secrets.
func Webhook(to string, opts WebhookOptions) (HookFunc, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, atoll.Errorf("webhook", "", atoll.ErrInvalid, "invalid URL: use one like https://host/path")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Fragment != "":
		return nil, atoll.Errorf("webhook", u.Host, atoll.ErrInvalid, "invalid URL: use one like https://host/path")
	case u.User != nil:
		return nil, atoll.Errorf("webhook", u.Host, atoll.ErrInvalid, "the URL must not contain a user or password: set a token, or a key to sign with")
	case u.Scheme == "http" && !opts.PlainHTTP && !isLoopback(u.Hostname()):
		return nil, atoll.Errorf("webhook", u.Host, atoll.ErrInvalid, "http to another machine is not encrypted: use https, or allow it with plain_http")
	case opts.Tries < 0 || opts.Timeout < 0 || opts.Backoff < 0:
		return nil, atoll.Errorf("webhook", u.Host, atoll.ErrInvalid, "tries and times must be positive")
	}
	opts.Timeout = cmp.Or(opts.Timeout, DefaultWebhookTimeout)
	opts.Tries = cmp.Or(opts.Tries, DefaultWebhookTries)
	opts.Backoff = cmp.Or(opts.Backoff, DefaultWebhookBackoff)
	w := &webhook{url: u, opts: opts, client: &http.Client{Transport: opts.Transport, CheckRedirect: checkRedirect}}
	return w.deliverHook, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// checkRedirect allows a redirect that repeats the request to the same host.
func checkRedirect(req *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case req.Method != first.Method:
		return errors.New("redirect would lose the request body: only 307 and 308 are followed")
	case req.URL.Host != first.URL.Host || req.URL.Scheme != first.URL.Scheme:
		return errors.New("redirected to another host: use that host's URL")
	case len(via) > 3:
		return errors.New("too many redirects")
	}
	return nil
}

type webhook struct {
	url    *url.URL
	opts   WebhookOptions
	client *http.Client
}

func (w *webhook) deliverHook(ctx context.Context, data *HookData) error {
	d := Delivery{
		ID: atoll.NewID(), Hook: data.Hook, Time: time.Now().UTC(),
		Conversation: data.ConversationID, Account: data.Account, Agent: data.Agent,
		Sandbox: data.SandboxInfo, Message: data.Message, TokenUsage: data.TokenUsage,
	}
	body, err := json.Marshal(d)
	if err != nil {
		return atoll.E("webhook", w.url.Host, atoll.ErrInvalid, err)
	}
	again := true
	policy := retry.Policy{
		First: w.opts.Backoff, Max: maxWebhookBackoff, Attempts: w.opts.Tries,
		If: func(error) bool { return again },
		Notify: func(try int, err error) {
			data.loggerOrDiscard().Debug("retrying webhook", "host", w.url.Host, "try", try, "err", err)
		},
	}
	_ = policy.Do(ctx, func() error { again, err = w.sendOnce(ctx, d.ID, body); return err })
	return err // of the last attempt, which is more specific than the end of ctx
}

// sendOnce sends the request once. again means that another attempt may succeed.
func (w *webhook) sendOnce(ctx context.Context, id string, body []byte) (again bool, err error) {
	within, cancel := context.WithTimeout(ctx, w.opts.Timeout)
	defer cancel()
	req, err := w.newRequest(within, id, body)
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
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection can be reused
	return w.checkStatus(res.StatusCode)
}

// newRequest returns a request with a signature and the bearer token.
func (w *webhook) newRequest(ctx context.Context, id string, body []byte) (*http.Request, error) {
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

// Sign returns the signature of a body sent at a time, so that receivers can check it.
func Sign(key string, at time.Time, body []byte) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(seconds + "."))
	mac.Write(body)
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}

func (w *webhook) checkStatus(status int) (again bool, err error) {
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
	return again, atoll.E("webhook", w.url.Host, kind, fmt.Errorf("server answered %d %s", status, http.StatusText(status)))
}
