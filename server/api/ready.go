package api

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

const (
	readyEvery = time.Second     // how often Options.Ready is asked at most, however many ask us
	readyTime  = 5 * time.Second // how long that may take
)

// readyReply says whether requests should be sent here. It is public, and says no more.
type readyReply struct {
	Status string `json:"status"` // "ready", "not ready" or "closing"
}

// A readiness remembers for a moment what Options.Ready has said.
type readiness struct {
	ask func(ctx context.Context) error

	mu    sync.Mutex
	asked time.Time
	err   error
}

// now is Options.Ready, as it was a moment ago.
func (r *readiness) now() error {
	if r.ask == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.asked) < readyEvery {
		return r.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTime) // the answer is for all who ask
	defer cancel()
	r.err = r.ask(ctx)
	r.asked = time.Now()
	return r.err
}

// serveReady says whether this server should get requests. Whoever sends them should go on
// asking: it may be again.
func (h *Handler) serveReady(w http.ResponseWriter, r *http.Request) error {
	if h.ctx.Err() != nil {
		w.Header().Set("Connection", "close")
		writeJSON(w, http.StatusServiceUnavailable, readyReply{"closing"})
		return nil
	}
	if err := h.ready.now(); err != nil && !errors.Is(err, context.Canceled) {
		h.log.WarnContext(r.Context(), "not ready", "err", err)
		writeJSON(w, http.StatusServiceUnavailable, readyReply{"not ready"})
		return nil
	}
	writeJSON(w, http.StatusOK, readyReply{"ready"})
	return nil
}
