package fakemodal

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// faults are what tests have in mind for calls.
type faults struct {
	mu        sync.Mutex
	intercept func(method string) error
	calls     map[string]int
	cuts      map[string][]int
	lost      map[string]int // how many answers are to be lost
}

// Intercept has f asked before each call, by the name of its method ("SandboxCreate").
// An error of f, which should have a status, is the answer, and nothing is done. f may
// take its time. nil takes it away.
func (s *Server) Intercept(f func(method string) error) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.intercept = f
}

// Cut has the next stream of that method end with codes.Unavailable after so many
// messages. Further ones wait for the streams after it.
func (s *Server) Cut(method string, after int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if s.faults.cuts == nil {
		s.faults.cuts = map[string][]int{}
	}
	s.faults.cuts[method] = append(s.faults.cuts[method], after)
}

// Lose has the next call of that method, which has one answer, be done and answered with
// codes.Unavailable. SDKs call again then: what they do twice is done twice.
func (s *Server) Lose(method string) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if s.faults.lost == nil {
		s.faults.lost = map[string]int{}
	}
	s.faults.lost[method]++
}

// Calls is how often the method was called, also when that was refused.
func (s *Server) Calls(method string) int {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.calls[method]
}

// countCall counts a call, and returns the error that it is to end with.
func (f *faults) countCall(method string) error {
	f.mu.Lock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	f.calls[method]++
	intercept := f.intercept
	f.mu.Unlock()
	if intercept == nil {
		return nil
	}
	return asStatus(intercept(method))
}

// losesAnswer reports whether the answer to a call is to be lost.
func (f *faults) losesAnswer(method string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost[method] == 0 {
		return false
	}
	f.lost[method]--
	return true
}

// cutFor returns the stream that ends early, if this one is to; else nil.
func (f *faults) cutFor(method string, ss grpc.ServerStream) *cutStream {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cuts[method]) == 0 {
		return nil
	}
	left := f.cuts[method][0]
	f.cuts[method] = f.cuts[method][1:]
	return &cutStream{ServerStream: ss, left: left}
}

// A cutStream ends after some messages.
type cutStream struct {
	grpc.ServerStream
	left int // until it ends
	done bool
}

var errCut = status.Error(codes.Unavailable, "connection lost")

// SendMsg sends a message, and fails with the last that may be sent.
func (c *cutStream) SendMsg(m any) error {
	if c.left <= 0 {
		c.done = true
		return errCut
	}
	if err := c.ServerStream.SendMsg(m); err != nil {
		return err
	}
	if c.left--; c.left == 0 {
		c.done = true
		return errCut
	}
	return nil
}

// endError is the error of the stream whose handler returned err.
func (c *cutStream) endError(err error) error {
	if c.done {
		return errCut
	}
	return asStatus(err)
}
