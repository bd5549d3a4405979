package gateway

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
)

// A swap is a value that has taken the place of a placeholder, or of a text with one.
type swap struct{ value, placeholder string }

// putSecrets puts the values of secrets into a request: in the place of placeholders, and where rules want them.
func (x *exchange) putSecrets(r *http.Request) *refusal {
	if x.redact {
		r.Header.Set("Accept-Encoding", "identity")
		for _, name := range []string{"Range", "If-Range", "A-Im"} {
			r.Header.Del(name)
		}
	}
	for i, s := range x.policy.Secrets() {
		if strings.Contains(r.RequestURI, s.Placeholder) || strings.Contains(r.URL.Path, s.Placeholder) {
			return x.refuseSecret(s, "is in the URL, where it does not belong: a rule can set a parameter")
		}
		for name, values := range r.Header {
			for j := range values {
				changed, why := x.putHeader(i, values[j])
				if why != nil {
					return why
				}
				if changed != values[j] && isRepeated(name) {
					return x.refuseSecret(s, "is in a header that servers repeat")
				}
				values[j] = changed
			}
		}
	}
	if why := x.putBody(r); why != nil {
		return why
	}
	return x.setByRules()
}

// isRepeated reports whether servers repeat a header in responses and logs, where the value of a secret would be for others to see.
func isRepeated(name string) bool {
	name = http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
	return slices.Contains(repeatedHeaders, name) || strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "Access-Control-") || strings.HasPrefix(name, "Sec-")
}

var repeatedHeaders = []string{
	"Accept", "Accept-Encoding", "Accept-Language", "Content-Disposition", "Content-Type", "Forwarded", "If-Match", "If-None-Match", "Origin", "Range",
	"Referer", "Traceparent", "Tracestate", "User-Agent", "Via", "X-Correlation-Id", "X-Request-Id",
}

// refuseSecret returns the refusal of a request with a secret.
func (x *exchange) refuseSecret(s atoll.Secret, problem string) *refusal {
	why := refuseWith("the placeholder of secret %s %s", s.Name, problem)
	why.told = "the placeholder of a secret " + problem
	return why
}

// putHeader returns the value of a header with the value of the secret with that index in the place of its placeholder.
func (x *exchange) putHeader(i int, text string) (string, *refusal) {
	s := x.policy.Secrets()[i]
	plain, encoded, basic := text, "", false
	if scheme, rest, ok := strings.Cut(text, " "); ok && strings.EqualFold(scheme, "basic") {
		if pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest)); err == nil {
			plain, encoded, basic = string(pair), rest, true
		}
	}
	if !strings.Contains(plain, s.Placeholder) {
		return text, nil
	}
	value, why := x.valueOf(i)
	if why != nil {
		return "", why
	}
	changed := strings.ReplaceAll(plain, s.Placeholder, value)
	x.addSwap(value, s.Placeholder)
	if !basic {
		return changed, nil
	}
	result := base64.StdEncoding.EncodeToString([]byte(changed))
	x.addSwap(result, encoded)
	return text[:len("basic ")] + result, nil
}

// minSwap is the length in bytes of the shortest value that is looked for in responses: they have shorter texts by chance.
const minSwap = 8

// addSwap has responses changed back.
func (x *exchange) addSwap(value, placeholder string) {
	if s := (swap{value, placeholder}); len(value) >= minSwap && !slices.Contains(x.swaps, s) {
		x.swaps = append(x.swaps, s)
	}
}

// valueOf returns the value of the secret with that index, if the request may get it.
func (x *exchange) valueOf(i int) (string, *refusal) {
	s := x.policy.Secrets()[i]
	host, port, secure := x.goesTo()
	switch {
	case !x.policy.MayGet(i, host, port):
		return "", x.refuseSecret(s, "is not for this host")
	case !secure:
		return "", x.refuseSecret(s, "does not go out without TLS")
	}
	value, err := x.gateway.opts.Value(s.Name)
	if err != nil {
		why := x.refuseSecret(s, "has no value now")
		why.reason = fmt.Sprintf("secret %s has no value: %v", s.Name, err)
		return "", why
	}
	return value, nil
}

// setByRules prepares the headers and parameters that rules want.
func (x *exchange) setByRules() *refusal {
	for _, rule := range x.rules {
		for name, text := range rule.SetHeaders {
			value, why := x.expandText(text)
			if why != nil {
				return why
			}
			x.setHeader(name, value)
		}
		for name, text := range rule.SetQuery {
			value, why := x.expandText(text)
			if why != nil {
				return why
			}
			if x.query == nil {
				x.query = map[string]string{}
			}
			x.query[name] = value
		}
		if rule.BasicAuth != "" {
			pair, why := x.expandText(rule.BasicAuth)
			if why != nil {
				return why
			}
			encoded := base64.StdEncoding.EncodeToString([]byte(pair))
			x.addSwap(encoded, "")
			x.setHeader("Authorization", "Basic "+encoded)
		}
	}
	return nil
}

// setHeader prepares a header that a rule wants.
func (x *exchange) setHeader(name, value string) {
	if x.headers == nil {
		x.headers = map[string]string{}
	}
	x.headers[http.CanonicalHeaderKey(name)] = value
}

// expandText returns the text of a rule with the values of secrets.
func (x *exchange) expandText(text string) (string, *refusal) {
	var refused *refusal
	expanded, _ := egress.Expand(text, func(name string) (string, error) {
		for i, s := range x.policy.Secrets() {
			if s.Name != name {
				continue
			}
			value, why := x.valueOf(i)
			if why != nil {
				refused = why
			}
			x.addSwap(value, s.Placeholder)
			return value, nil
		}
		return "", nil // New has checked it
	})
	return expanded, refused
}

// putBody puts the values of secrets into the body of a request.
func (x *exchange) putBody(r *http.Request) *refusal {
	var all []int // secrets that may be in bodies
	for i, s := range x.policy.Secrets() {
		if s.Body {
			all = append(all, i)
		}
	}
	if len(all) == 0 || r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if !isPlain(r.Header) {
		return nil // no program puts a placeholder there, and what it has packed goes out as it is
	}
	if err := x.gateway.bodies.Acquire(r.Context(), 1); err != nil {
		return refuseWith("the client did not wait")
	}
	x.releaseBody = func() { x.gateway.bodies.Release(1) }
	start, err := io.ReadAll(io.LimitReader(r.Body, atoll.MaxSecretBody+1))
	if err != nil {
		return refuseWith("its body ends early")
	}
	if len(start) > atoll.MaxSecretBody {
		r.Body = x.watchBody(all, start, r.Body)
		return nil
	}
	for _, i := range all {
		placeholder := []byte(x.policy.Secrets()[i].Placeholder)
		if !bytes.Contains(start, placeholder) {
			continue
		}
		value, why := x.valueOf(i)
		if why != nil {
			return why
		}
		start = bytes.ReplaceAll(start, placeholder, []byte(value))
		x.addSwap(value, string(placeholder))
	}
	r.Body = &startedBody{io.NopCloser(bytes.NewReader(start)), r.Body}
	r.ContentLength = int64(len(start))
	r.TransferEncoding = nil
	r.Header.Set("Content-Length", fmt.Sprint(len(start)))
	return nil
}

// watchBody returns a long body, of which start has been read, that fails at a placeholder.
func (x *exchange) watchBody(secrets []int, start []byte, rest io.ReadCloser) io.ReadCloser {
	w := &watchedBody{ReadCloser: &startedBody{io.NopCloser(io.MultiReader(bytes.NewReader(start), rest)), rest}}
	for _, i := range secrets {
		s := x.policy.Secrets()[i]
		w.secrets = append(w.secrets, []byte(s.Placeholder))
		w.refusals = append(w.refusals, x.refuseSecret(s, fmt.Sprintf("is in a body of more than %d bytes", atoll.MaxSecretBody)))
		w.longest = max(w.longest, len(s.Placeholder))
	}
	return w
}

// A startedBody reads from one body, and closes another.
type startedBody struct {
	io.ReadCloser
	whole io.Closer
}

func (b *startedBody) Close() error { return b.whole.Close() }

// A watchedBody fails at a placeholder.
type watchedBody struct {
	io.ReadCloser
	secrets  [][]byte
	refusals []*refusal // by the index of secrets
	longest  int        // length of the longest placeholder
	tail     []byte     // the last bytes that were read
}

func (w *watchedBody) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	seen := append(w.tail, p[:n]...)
	for i, s := range w.secrets {
		if bytes.Contains(seen, s) {
			return 0, w.refusals[i]
		}
	}
	w.tail = bytes.Clone(seen[max(0, len(seen)-w.longest+1):])
	return n, err
}

// A redacted is the body of a response in which placeholders take the place of values. It holds back as many bytes as a value has, whatever
// they are: a program could learn the value from when it gets them.
type redacted struct {
	io.ReadCloser
	swaps   []swap
	longest int    // length of the longest value
	ready   []byte // to be read
	held    []byte // could have the beginning of a value
	err     error  // after what is ready
}

func newRedacted(body io.ReadCloser, swaps []swap) *redacted {
	b := &redacted{ReadCloser: body, swaps: swaps}
	for _, s := range swaps {
		b.longest = max(b.longest, len(s.value))
	}
	return b
}

func (b *redacted) Read(p []byte) (int, error) {
	for len(b.ready) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		buffer := make([]byte, max(len(p), 512))
		n, err := b.ReadCloser.Read(buffer)
		text := append(b.held, buffer[:n]...)
		for _, s := range b.swaps {
			text = bytes.ReplaceAll(text, []byte(s.value), []byte(s.placeholder))
		}
		keep := 0
		if b.err = err; err == nil {
			keep = min(b.longest-1, len(text))
		}
		b.ready, b.held = text[:len(text)-keep], bytes.Clone(text[len(text)-keep:])
	}
	n := copy(p, b.ready)
	b.ready = b.ready[n:]
	return n, nil
}
