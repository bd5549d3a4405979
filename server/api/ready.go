package api

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

const (
	readyCacheTime = time.Second     // the time for which a result of Options.Ready is reused
	readyTimeout   = 5 * time.Second // the deadline of Options.Ready
)

// A readyReply says whether the server is ready. /readyz needs no token, so it has no details.
type readyReply struct {
	Status string `json:"status"` // "ready", "not ready" or "closing"
}

// A readiness caches the result of Options.Ready.
type readiness struct {
	ask func(ctx context.Context) error

	mu    sync.Mutex
	asked time.Time
	err   error
}

// checkReady returns the result of Options.Ready, which may be up to readyCacheTime old.
func (r *readiness) checkReady() error {
	if r.ask == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.asked) < readyCacheTime {
		return r.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout) // not the request's, since the result serves other requests too
	defer cancel()
	r.err = r.ask(ctx)
	r.asked = time.Now()
	return r.err
}

// serveReady says whether the server is ready. A server that is not ready may become ready again.
func (h *Handler) serveReady(w http.ResponseWriter, r *http.Request) error {
	if h.ctx.Err() != nil {
		w.Header().Set("Connection", "close")
		writeJSON(w, http.StatusServiceUnavailable, readyReply{"closing"})
		return nil
	}
	if err := h.ready.checkReady(); err != nil && !errors.Is(err, context.Canceled) {
		h.log.WarnContext(r.Context(), "not ready", "err", err)
		writeJSON(w, http.StatusServiceUnavailable, readyReply{"not ready"})
		return nil
	}
	writeJSON(w, http.StatusOK, readyReply{"ready"})
	return nil
}
