package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/server/api/internal/wire"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// A tokenVerifier holds the digests of tokens, so that a comparison takes the same time for each
// guess.
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

// verifyToken returns the account of token. It always compares all tokens. Kinds: ErrDenied.
func (v tokenVerifier) verifyToken(_ context.Context, token string) (auth.Account, error) {
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

// Subprotocol is the WebSocket subprotocol that browsers request along with the one that carries
// the token: a server must select one of the requested subprotocols.
const Subprotocol = "atoll.v1"

// tokenProtocol is the prefix of a subprotocol that carries a token, in unpadded base64 for URLs. A
// page can set no other header of a WebSocket.
const tokenProtocol = "atoll.token."

// requestToken returns the token of a request, or "".
func requestToken(route Route, r *http.Request) string {
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

// withFallback returns a function that verifies tokens with v, and tokens that v does not know with
// next, if next is not nil.
func (v tokenVerifier) withFallback(next func(context.Context, string) (auth.Account, error)) func(context.Context, string) (auth.Account, error) {
	if next == nil {
		return v.verifyToken
	}
	return func(ctx context.Context, token string) (auth.Account, error) {
		if account, err := v.verifyToken(ctx, token); err == nil {
			return account, nil
		}
		return next(ctx, token)
	}
}

// A credential proves who sends a request.
type credential struct {
	account auth.Account
	verify  func(ctx context.Context) error // checks the credential again; nil if it does not end
	link    *portLink                       // nil unless the credential is a link
}

// authenticateRequest returns the credential of a request. Kinds: ErrDenied, ErrUnavailable.
func (h *Handler) authenticateRequest(route Route, r *http.Request) (credential, error) {
	if h.verify == nil {
		return credential{account: auth.AccountFrom(r.Context())}, nil
	}
	token := requestToken(route, r)
	linked, err := h.authenticateLink(r)
	if linked.link != nil || err != nil && token == "" {
		return linked, err
	}
	if token == "" {
		return credential{}, unauthorizedError(atoll.Errorf("", "", atoll.ErrDenied, "a token is needed: send it as Authorization: Bearer ..."))
	}
	account, err := h.verify(r.Context(), token)
	if err != nil && atoll.KindOf(err) != atoll.ErrUnavailable {
		h.refusals.logRefusal(h.log, r)
		return credential{}, unauthorizedError(err)
	}
	cred := credential{account: account.WithDefaults()}
	if account.Key != "" {
		cred.verify = func(ctx context.Context) error {
			_, err := h.verify(ctx, token)
			return err
		}
	}
	return cred, err
}

// watchCredential calls verify at intervals and returns a ctx that ends when the credential is no longer
// valid. The caller must call stop, which ends the checks and waits for them.
func (h *Handler) watchCredential(ctx context.Context, w http.ResponseWriter, verify func(context.Context) error) (valid context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(h.opts.verifyEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := verify(ctx); atoll.KindOf(err) == atoll.ErrDenied && ctx.Err() == nil {
				h.opts.Denied(ctx, "go on")
				cancel(errKeyEnded)
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(closeGrace)) // releases a write to a client that does not read
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		work.Wait()
	}
}

// errKeyEnded is the error of a request whose key has become invalid.
var errKeyEnded = unauthorizedError(atoll.Errorf("", "", atoll.ErrDenied, "the key was revoked or has expired"))

// endReason returns why the server has ended the ctx of a request: errKeyEnded or wire.ErrClosing. It
// returns nil if ctx has not ended, or the client ended it.
func endReason(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errKeyEnded) || errors.Is(cause, wire.ErrClosing) {
		return cause
	}
	return nil
}

// unauthorizedError returns an error of kind ErrDenied whose HTTP status is 401.
func unauthorizedError(err error) error {
	if atoll.KindOf(err) != atoll.ErrDenied {
		err = atoll.E("", "", atoll.ErrDenied, err)
	}
	return statusError{err, http.StatusUnauthorized}
}
