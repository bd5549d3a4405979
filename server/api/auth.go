package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// tokenVerifier knows tokens by their digests, so that comparing takes the
// same time whatever is right about a guess.
type tokenVerifier []struct {
	digest  [sha256.Size]byte
	account auth.Account
}

func newTokenVerifier(tokens map[string]auth.Account) tokenVerifier {
	v := make(tokenVerifier, 0, len(tokens))
	for token, account := range tokens {
		v = append(v, struct {
			digest  [sha256.Size]byte
			account auth.Account
		}{sha256.Sum256([]byte(token)), account})
	}
	return v
}

// verify looks at every token, found or not.
func (v tokenVerifier) verify(_ context.Context, token string) (auth.Account, error) {
	digest := sha256.Sum256([]byte(token))
	found := -1
	for i := range v {
		if subtle.ConstantTimeCompare(digest[:], v[i].digest[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return auth.Account{}, atoll.Errorf("", "", atoll.ErrDenied, "the token is not known here")
	}
	return v[found].account, nil
}

// Subprotocol is what a browser asks for on a WebSocket, besides the one that is
// its token: of those that it names a server must take one.
const Subprotocol = "atoll.v1"

// tokenProtocol begins the name of a subprotocol that is a token, in base64 for
// URLs without padding. A page cannot set the headers of a WebSocket, but this one.
const tokenProtocol = "atoll.token."

// tokenOf is the token that a request brings, "" when there is none.
func tokenOf(route Route, r *http.Request) string {
	if scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	if route.Stream.Type == nil || r.Header.Get("Authorization") != "" {
		return ""
	}
	for _, list := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(list, ",") {
			encoded, ok := strings.CutPrefix(strings.TrimSpace(name), tokenProtocol)
			if token, err := base64.RawURLEncoding.DecodeString(encoded); ok && err == nil {
				return string(token)
			}
		}
	}
	return ""
}

// or returns a function that verifies tokens of v, and asks next about others, if it
// is not nil.
func (v tokenVerifier) or(next func(context.Context, string) (auth.Account, error)) func(context.Context, string) (auth.Account, error) {
	if next == nil {
		return v.verify
	}
	return func(ctx context.Context, token string) (auth.Account, error) {
		if account, err := v.verify(ctx, token); err == nil {
			return account, nil
		}
		return next(ctx, token)
	}
}

// authenticate finds out who asks, and by which token.
func (h *Handler) authenticate(route Route, r *http.Request) (auth.Account, string, error) {
	if h.verify == nil {
		return auth.AccountFrom(r.Context()), "", nil
	}
	token := tokenOf(route, r)
	if token == "" {
		return auth.Account{}, "", unauthorized(atoll.Errorf("", "", atoll.ErrDenied, "a token is needed: send it as Authorization: Bearer ..."))
	}
	account, err := h.verify(r.Context(), token)
	if err != nil && atoll.KindOf(err) != atoll.ErrUnavailable {
		return auth.Account{}, "", unauthorized(err)
	}
	return account.WithDefaults(), token, err
}

// whileGood returns a ctx that ends when a token is not good any more. The caller
// calls stop at its end, which waits for what looks after it.
func (h *Handler) whileGood(ctx context.Context, w http.ResponseWriter, token string) (good context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(h.opts.again)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if _, err := h.verify(ctx, token); atoll.KindOf(err) == atoll.ErrDenied && ctx.Err() == nil {
				h.opts.Denied(ctx, "go on")
				cancel()
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(closeGrace)) // of a client that does not read
				return
			}
		}
	})
	return ctx, func() {
		cancel()
		work.Wait()
	}
}

// unauthorized makes err an ErrDenied that is answered with 401.
func unauthorized(err error) error {
	if atoll.KindOf(err) != atoll.ErrDenied {
		err = atoll.E("", "", atoll.ErrDenied, err)
	}
	return statusError{err, http.StatusUnauthorized}
}
