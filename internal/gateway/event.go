package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/egress"
)

// traffic counts the bytes of an exchange. Both directions may be counted at once.
type traffic struct{ sent, received atomic.Int64 }

// A countedBody is the body of a request whose bytes count as sent.
type countedBody struct {
	io.ReadCloser
	x *exchange
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.x.traffic.sent.Add(int64(n))
	return n, err
}

// A countedStream has the bytes after a response that switches protocols. It sends to the server, and waits as the rules want it.
type countedStream struct {
	io.ReadWriteCloser
	x   *exchange
	ctx context.Context
}

// limitBytes waits until the limits have room for n bytes.
func (s *countedStream) limitBytes(n int) error {
	for _, rule := range s.x.rules {
		if rule.Bytes == nil {
			continue
		}
		if err := waitBytes(s.ctx, rule.Bytes, n); err != nil {
			return err
		}
	}
	return nil
}

func (s *countedStream) Read(p []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(p)
	s.x.traffic.received.Add(int64(n))
	return n, cmp.Or(s.limitBytes(n), err)
}

func (s *countedStream) Write(p []byte) (int, error) {
	n, err := s.ReadWriteCloser.Write(p)
	s.x.traffic.sent.Add(int64(n))
	return n, cmp.Or(s.limitBytes(n), err)
}

// beginEvent begins the event of a request.
func (x *exchange) beginEvent(r *http.Request) {
	x.began = time.Now()
	x.event = atoll.NetworkEvent{
		Protocol: "http", Address: x.to.Addr.Addr().Unmap().String(), Port: x.port,
		Method: r.Method, Path: egress.PrintPath(r.URL.Path), Verdict: atoll.NetworkAllowed,
	}
	if x.serverName != "" {
		x.event.Protocol = "https"
	}
}

// endEvent reports the event of a request that has ended.
func (x *exchange) endEvent() {
	if x.releaseBody != nil {
		x.releaseBody()
	}
	x.event.Host, x.event.Duration = x.host, atoll.Duration(time.Since(x.began))
	x.event.Sent, x.event.Received = atoll.Bytes(x.traffic.sent.Load()), atoll.Bytes(x.traffic.received.Load())
	x.gateway.opts.Report(x.event)
}

// failEvent records that the server did not answer. The text of err is not for a log: it may quote what the server said.
func (x *exchange) failEvent(err error) {
	x.event.Verdict, x.event.Reason = atoll.NetworkFailed, explainFailure(err)
}

// explainFailure returns why a request has failed.
func explainFailure(err error) string {
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, errOver):
		return "the program did not wait for the response"
	case isTimeout(err), errors.Is(err, context.DeadlineExceeded):
		return "the server did not answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return "the server ended the connection"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the server refused the connection"
	case errors.As(err, &certificate):
		return "the certificate of the server is not valid"
	case errors.Is(err, errManyServers):
		return errManyServers.Error()
	}
	return "the server did not speak HTTP as it should"
}

// reportTLS reports that a connection of TLS is refused.
func (g *Gateway) reportTLS(host string, to Target, reason string) {
	g.opts.Report(atoll.NetworkEvent{
		Protocol: "tls", Host: host, Address: to.Addr.Addr().Unmap().String(), Port: int(to.Addr.Port()),
		Verdict: atoll.NetworkRefused, Reason: reason,
	})
}
