package fakemodal

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// faults are the errors that tests inject into calls.
type faults struct {
	mu        sync.Mutex
	intercept func(method string) error
	calls     map[string]int
	cuts      map[string][]int
	lost      map[string]int // number of answers to drop, by method
}

// Intercept makes the server call f before each call, with the name of its method ("SandboxCreate").
// If f returns an error, which should have a status, the call fails with it. f may block. A nil f
// removes the hook.
func (s *Server) Intercept(f func(method string) error) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.intercept = f
}

// Cut makes the next stream of a method fail with codes.Unavailable after so many messages. Further
// cuts apply to the streams after it.
func (s *Server) Cut(method string, after int) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if s.faults.cuts == nil {
		s.faults.cuts = map[string][]int{}
	}
	s.faults.cuts[method] = append(s.faults.cuts[method], after)
}

// DropAnswer makes the server run the next unary call of a method, but answer it with codes.Unavailable.
// SDKs repeat the call then, so that it may have its effect twice.
func (s *Server) DropAnswer(method string) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	if s.faults.lost == nil {
		s.faults.lost = map[string]int{}
	}
	s.faults.lost[method]++
}

// Calls returns the number of calls of a method, including rejected ones.
func (s *Server) Calls(method string) int {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	return s.faults.calls[method]
}

// countCall counts a call and returns the error to fail it with, or nil.
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
	return toStatus(intercept(method))
}

// losesAnswer reports whether to drop the answer to this call.
func (f *faults) losesAnswer(method string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost[method] == 0 {
		return false
	}
	f.lost[method]--
	return true
}

// cutFor returns a stream that fails early, if Cut asked for one, or nil.
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

// A cutStream fails after some messages.
type cutStream struct {
	grpc.ServerStream
	left int // remaining messages
	done bool
}

var errCut = status.Error(codes.Unavailable, "connection lost")

// SendMsg sends a message, and fails after the last allowed one.
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

// endError returns the error of a stream whose handler returned err.
func (c *cutStream) endError(err error) error {
	if c.done {
		return errCut
	}
	return toStatus(err)
}
