package fakemodal

import (
	"net"
	"net/http"
	"time"
)

// A webServer serves HTTP on the loopback interface.
type webServer struct {
	address string
	server  *http.Server
	ended   chan struct{}
}

// serveHTTP starts a server. It closes each connection after one request, so that clients have nothing
// to close.
func serveHTTP(h http.Handler) (*webServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &webServer{l.Addr().String(), &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}, make(chan struct{})}
	w.server.SetKeepAlivesEnabled(false)
	go func() {
		defer close(w.ended)
		_ = w.server.Serve(l) // returns after Close
	}()
	return w, nil
}

func (w *webServer) stopServing() error {
	err := w.server.Close()
	<-w.ended
	return err
}
