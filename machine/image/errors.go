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

// A damageError is a fault in an image, which no retry repairs.
type damageError struct {
	msg string
	err error // may be nil
}

func newDamageError(err error, format string, args ...any) error {
	return &damageError{fmt.Sprintf(format, args...), err}
}

func (d *damageError) Error() string {
	if d.err == nil {
		return d.msg
	}
	return d.msg + ": " + d.err.Error()
}

func (d *damageError) Unwrap() error { return d.err }

// A limitError says which limit an image exceeds.
type limitError string

func newLimitError(format string, args ...any) error { return limitError(fmt.Sprintf(format, args...)) }

func (e limitError) Error() string { return string(e) }

// errOverLimit is a placeholder: imageError replaces it with a text that has the limit.
var errOverLimit = errors.New("over the limit")

// A noSpaceError is a failure for lack of space.
type noSpaceError struct {
	need int64 // bytes that are needed at least
	err  error
}

func (s *noSpaceError) Error() string { return s.err.Error() }
func (s *noSpaceError) Unwrap() error { return s.err }

func isNoSpace(err error) bool {
	return fsutil.IsFull(err) || errors.Is(err, syscall.EFBIG)
}

// imageError gives the failure to fetch or unpack an image its kind.
func (s *Store) imageError(r reference, err error) error {
	var e *atoll.Error
	if errors.As(err, &e) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return atoll.E("image", r.text, atoll.KindOf(err), err)
	}
	var short *noSpaceError
	if errors.As(err, &short) {
		return atoll.Errorf("image", r.text, atoll.ErrExhausted, "no space left in %s: needs at least %d bytes there, %d are free: %w",
			s.dir, short.need, freeBytes(s.dir), err)
	}
	var big limitError
	if errors.Is(err, errOverLimit) || errors.As(err, &big) {
		switch {
		case errors.Is(err, errOverLimit) && s.opts.Limit < 0:
			big = "is larger than any file system can hold"
		case errors.Is(err, errOverLimit):
			big = limitError(fmt.Sprintf("unpacks to more than %s, the limit", s.opts.Limit))
		}
		return atoll.E("image", r.text, atoll.ErrExhausted, big)
	}
	var absent notFoundError
	if errors.As(err, &absent) {
		return atoll.E("image", r.text, atoll.ErrNotExist, absent)
	}
	var bad *damageError
	if errors.As(err, &bad) || isBadName(err) {
		return atoll.Errorf("image", r.text, atoll.ErrInvalid, "damaged, or not an image: %w", err)
	}
	return s.storeError(err)
}

// isBadName reports whether the file system refused a name or link of an image.
func isBadName(err error) bool {
	for _, e := range []error{syscall.ENAMETOOLONG, syscall.ELOOP, syscall.ENOTDIR, syscall.EISDIR, syscall.EINVAL, syscall.EMLINK} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// storeError gives a failure in the store's own directory its kind.
func (s *Store) storeError(err error) error {
	var e *atoll.Error
	if errors.As(err, &e) {
		return err
	}
	kind := atoll.ErrInternal
	switch {
	case isNoSpace(err):
		kind = atoll.ErrExhausted
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		kind = atoll.ErrDenied
	}
	return atoll.E("image store", s.dir, kind, err)
}

// errPlainHTTP refuses a registry without TLS.
var errPlainHTTP = errors.New("plain HTTP is not allowed: use https, or list the registry as insecure (image.insecure)")

// isTransient reports whether a request that failed with err may succeed when repeated.
func isTransient(err error) bool {
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
	case errors.Is(err, errPlainHTTP), isInternalAddrError(err), errors.Is(err, http.ErrSchemeMismatch),
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

// registryError gives the failure of a request to a registry its kind and a text.
func registryError(r reference, err error) error {
	host := registryName(r.remote.Context().RegistryStr())
	var status *transport.Error
	if !errors.As(err, &status) {
		if !isTransient(err) && !isConnection(err) {
			return atoll.Errorf("image", r.text, atoll.ErrInvalid, "%s does not answer like a registry: %w", host, err)
		}
		return atoll.Errorf("image", r.text, atoll.ErrUnavailable, "registry %s cannot be reached: %w", host, err)
	}
	switch code := status.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return atoll.Errorf("image", r.text, atoll.ErrDenied,
			"%s denies access: there is no such image, or it needs `docker login %s`: %w", host, host, err)
	case code == http.StatusNotFound:
		return atoll.Errorf("image", r.text, atoll.ErrNotExist, "%s has no such image: %w", host, err)
	case code == http.StatusTooManyRequests:
		return atoll.Errorf("image", r.text, atoll.ErrUnavailable, "%s limits the rate of requests: try later, or `docker login %s`: %w", host, host, err)
	case code >= 500 || code == http.StatusRequestTimeout:
		return atoll.Errorf("image", r.text, atoll.ErrUnavailable, "registry %s failed: %w", host, err)
	}
	return atoll.Errorf("image", r.text, atoll.ErrInvalid, "%s refuses the request: %w", host, err)
}

// isConnection reports whether a request failed because there was no usable connection.
func isConnection(err error) bool {
	if isInternalAddrError(err) {
		return false
	}
	var request *url.Error
	var network net.Error
	return errors.As(err, &request) || errors.As(err, &network) || errors.Is(err, errPlainHTTP) || errors.Is(err, http.ErrSchemeMismatch)
}

// registryName returns the name that people and docker login use for a registry.
func registryName(host string) string {
	if host == "index.docker.io" {
		return "docker.io"
	}
	return host
}
