package idletracker

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A call counts as use as long as it lasts.
func TestUse(t *testing.T) {
	var u Use
	if !u.Latest().IsZero() {
		t.Error("the zero Use was used")
	}
	begun, end := make(chan struct{}), make(chan struct{})
	h := u.Counts(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-end
	}))
	served := make(chan struct{})
	go func() {
		defer close(served)
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}()
	<-begun
	if before := time.Now(); u.Latest().Before(before) {
		t.Error("not in use during a call")
	}
	close(end)
	<-served
	ended := u.Latest()
	time.Sleep(time.Millisecond)
	if after := time.Now(); !u.Latest().Equal(ended) || !ended.Before(after) {
		t.Errorf("after the call it was used %v, and then %v", ended, u.Latest())
	}
}

func TestStep(t *testing.T) {
	for limit, want := range map[time.Duration]time.Duration{10 * time.Second: time.Second, time.Hour: time.Minute} {
		if got := Step(limit); got != want {
			t.Errorf("Step(%s) = %s, want %s", limit, got, want)
		}
	}
}
