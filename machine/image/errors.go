//go:build linux

package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// A damage is what is wrong with an image, which no retry mends.
type damage struct {
	msg string
	err error // may be nil
}

func damaged(err error, format string, args ...any) error {
	return &damage{fmt.Sprintf(format, args...), err}
}

func (d *damage) Error() string {
	if d.err == nil {
		return d.msg
	}
	return d.msg + ": " + d.err.Error()
}

func (d *damage) Unwrap() error { return d.err }

// An excess is a limit that an image goes beyond.
type excess string

func tooBig(format string, args ...any) error { return excess(fmt.Sprintf(format, args...)) }

func (e excess) Error() string { return string(e) }

// errOverLimit is replaced by a sentence with the limit in it.
var errOverLimit = errors.New("over the limit")

// A shortage is a failure for want of space, with how much was wanted at least.
type shortage struct {
	need int64
	err  error
}

func (s *shortage) Error() string { return s.err.Error() }
func (s *shortage) Unwrap() error { return s.err }

func noSpace(err error) bool {
	return fsutil.IsFull(err) || errors.Is(err, syscall.EFBIG)
}

// failed gives the failure to make an image its kind.
func (s *Store) failed(r reference, err error) error {
	var e *atoll.Error
	if errors.As(err, &e) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return atoll.E("image", r.text, atoll.KindOf(err), err)
	}
	var short *shortage
	if errors.As(err, &short) {
		return atoll.Errorf("image", r.text, atoll.ErrExhausted, "no space left in %s: needs at least %d bytes there, %d are free: %w",
			s.dir, short.need, free(s.dir), err)
	}
	var big excess
	if errors.Is(err, errOverLimit) || errors.As(err, &big) {
		switch {
		case errors.Is(err, errOverLimit) && s.opts.Limit < 0:
			big = "is larger than anything can be"
		case errors.Is(err, errOverLimit):
			big = excess(fmt.Sprintf("unpacks to more than %s, the limit", s.opts.Limit))
		}
		return atoll.E("image", r.text, atoll.ErrExhausted, big)
	}
	var absent absence
	if errors.As(err, &absent) {
		return atoll.E("image", r.text, atoll.ErrNotExist, absent)
	}
	var bad *damage
	if errors.As(err, &bad) || badName(err) {
		return atoll.Errorf("image", r.text, atoll.ErrInvalid, "damaged or no image: %w", err)
	}
	return s.storage(err)
}

// badName reports whether the file system did not like a name or link that an
// image holds.
func badName(err error) bool {
	for _, e := range []error{syscall.ENAMETOOLONG, syscall.ELOOP, syscall.ENOTDIR, syscall.EISDIR, syscall.EINVAL, syscall.EMLINK} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// storage gives a failure of the store's own directory its kind.
func (s *Store) storage(err error) error {
	var e *atoll.Error
	if errors.As(err, &e) {
		return err
	}
	kind := atoll.ErrInternal
	switch {
	case noSpace(err):
		kind = atoll.ErrExhausted
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		kind = atoll.ErrDenied
	}
	return atoll.E("image store", s.dir, kind, err)
}

// errPlain refuses a registry without TLS.
var errPlain = errors.New("plain HTTP is not allowed: list the registry as insecure (image.insecure) if that is what you want")

// transient reports whether a request that failed so may succeed when it is
// repeated.
func transient(err error) bool {
	var status *transport.Error
	if errors.As(err, &status) {
		switch status.StatusCode {
		case http.StatusRequestTimeout, http.StatusTooManyRequests:
			return true
		}
		return status.StatusCode >= 500 && status.StatusCode != http.StatusNotImplemented
	}
	var cert *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var dns *net.DNSError
	switch {
	case errors.Is(err, errPlain), isInwardError(err), errors.Is(err, http.ErrSchemeMismatch),
		errors.As(err, &cert), errors.As(err, &authority),
		errors.As(err, &dns) && dns.IsNotFound:
		return false
	}
	var request *url.Error
	var network net.Error
	return errors.As(err, &request) || errors.As(err, &network) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// refused gives the failure of a request to a registry its kind.
func refused(r reference, err error) error {
	host := registryName(r.remote.Context().RegistryStr())
	var status *transport.Error
	if !errors.As(err, &status) {
		if !transient(err) && !isConnection(err) {
			return atoll.Errorf("image", r.text, atoll.ErrInvalid, "%s does not answer as a registry does: %w", host, err)
		}
		return atoll.Errorf("image", r.text, atoll.ErrUnavailable, "registry %s cannot be reached: %w", host, err)
	}
	switch code := status.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return atoll.Errorf("image", r.text, atoll.ErrDenied,
			"%s says no: there is no such image, or it needs `docker login %s`: %w", host, host, err)
	case code == http.StatusNotFound:
		return atoll.Errorf("image", r.text, atoll.ErrNotExist, "%s has no such image: %w", host, err)
	case code == http.StatusTooManyRequests:
		return atoll.Errorf("image", r.text, atoll.ErrUnavailable, "%s wants fewer requests, try later or `docker login %s`: %w", host, host, err)
	case code >= 500 || code == http.StatusRequestTimeout:
		return atoll.Errorf("image", r.text, atoll.ErrUnavailable, "registry %s is in trouble: %w", host, err)
	}
	return atoll.Errorf("image", r.text, atoll.ErrInvalid, "%s refuses the request: %w", host, err)
}

// isConnection reports whether there was nobody to talk to, for good.
func isConnection(err error) bool {
	if isInwardError(err) {
		return false
	}
	var request *url.Error
	var network net.Error
	return errors.As(err, &request) || errors.As(err, &network) || errors.Is(err, errPlain) || errors.Is(err, http.ErrSchemeMismatch)
}

// registryName is what people, and docker login, call the registry.
func registryName(host string) string {
	if host == "index.docker.io" {
		return "docker.io"
	}
	return host
}
