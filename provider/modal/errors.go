package modal

import (
	"context"
	"errors"
	"strings"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// wrapError wraps an error of the service with its kind.
func (p *Provider) wrapError(ctx context.Context, op, id string, err error) error {
	switch {
	case err == nil:
		return nil
	case contextEnded(ctx, err):
		return ctx.Err()
	case remote.HasKind(err):
		return err
	}
	return atoll.E(op, id, kindOf(err), plainError(err))
}

// deadlineSlack is the time by which the service may see a deadline earlier than the call's
// context.
const deadlineSlack = time.Second

// contextEnded reports whether a call failed because its context has ended, or ends within
// deadlineSlack, for which it waits.
func contextEnded(ctx context.Context, err error) bool {
	deadline, ok := ctx.Deadline()
	if ok && time.Until(deadline) < deadlineSlack && (isCode(err, codes.Canceled) || isCode(err, codes.DeadlineExceeded)) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// plainError returns an error with the service's own text.
func plainError(err error) error {
	var inner interface{ GRPCStatus() *status.Status } // without the text that the SDK adds
	if !errors.As(err, &inner) {
		return err
	}
	s := inner.GRPCStatus()
	text := strings.TrimSpace(s.Message())
	if cause, ok := strings.CutPrefix(text, `connection error: desc = "transport: `); ok {
		text = strings.TrimSuffix(cause, `"`)
	}
	if s.Code() == codes.Unauthenticated {
		text += ": check that MODAL_TOKEN_ID and MODAL_TOKEN_SECRET belong to one token; modal token new makes one"
	}
	return errors.New(text)
}

func kindOf(err error) atoll.Kind {
	var notFound sdk.NotFoundError
	var exists sdk.AlreadyExistsError
	var invalid sdk.InvalidError
	var remote sdk.RemoteError
	var late sdk.SandboxTimeoutError
	switch {
	case errors.As(err, &notFound):
		return atoll.ErrNotExist
	case errors.As(err, &exists):
		return atoll.ErrAlreadyExists
	case errors.As(err, &invalid):
		return atoll.ErrInvalid
	case errors.As(err, &remote) || errors.As(err, &late):
		return atoll.ErrUnavailable
	}
	switch status.Code(err) {
	case codes.NotFound:
		return atoll.ErrNotExist // an object at Modal; sandboxes exist as records
	case codes.AlreadyExists, codes.Aborted, codes.FailedPrecondition:
		return atoll.ErrConflict
	case codes.InvalidArgument, codes.OutOfRange:
		return atoll.ErrInvalid
	case codes.Unauthenticated, codes.PermissionDenied:
		return atoll.ErrDenied
	case codes.ResourceExhausted:
		return atoll.ErrExhausted
	case codes.Unimplemented:
		return atoll.ErrUnsupported
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return atoll.ErrUnavailable
	}
	return atoll.ErrInternal
}

// imageError returns the error for an image that Modal could not build.
func imageError(ref string, err error) error {
	var remote sdk.RemoteError
	if !errors.As(err, &remote) {
		return err
	}
	kind := atoll.ErrUnavailable
	for _, word := range []string{"not found", "MANIFEST_UNKNOWN", "NAME_UNKNOWN", "manifest unknown", "does not exist"} {
		if strings.Contains(remote.Exception, word) {
			kind = atoll.ErrNotExist
		}
	}
	text := remote.Exception
	if _, cause, ok := strings.Cut(text, "failed with the exception:"); ok { // the text before it has the SDK's name of the image
		text = cause
	}
	return atoll.Errorf("create", "", kind, "image %s: %s", ref, strings.TrimSpace(text))
}

// unreachableError returns the error for a part of a sandbox that does not answer.
func unreachableError(op, id, what string, err error) error {
	kind := atoll.ErrUnavailable
	if k := kindOf(err); k == atoll.ErrDenied || k == atoll.ErrExhausted || k == atoll.ErrInternal && status.Code(err) == codes.Internal {
		kind = k
	}
	return atoll.Errorf(op, id, kind, "cannot reach %s: %w", what, plainError(err))
}

// isCode reports whether the service answered with that code.
func isCode(err error, code codes.Code) bool {
	return err != nil && status.Code(err) == code
}
