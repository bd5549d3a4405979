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
)

// wrapError gives an error of the service its kind.
func (p *Provider) wrapError(ctx context.Context, op, id string, err error) error {
	switch {
	case err == nil:
		return nil
	case contextEnded(ctx, err):
		return ctx.Err()
	case hasKind(err):
		return err
	}
	return atoll.E(op, id, kindOf(err), plainError(err))
}

// deadlineSlack is how much earlier than the context of a call the service may see that its time
// is over.
const deadlineSlack = time.Second

// contextEnded reports whether a call has failed because its context has ended, or does just now.
func contextEnded(ctx context.Context, err error) bool {
	deadline, ok := ctx.Deadline()
	if ok && time.Until(deadline) < deadlineSlack && (isCode(err, codes.Canceled) || isCode(err, codes.DeadlineExceeded)) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

func hasKind(err error) bool {
	var known *atoll.Error
	return errors.As(err, &known)
}

// plainError is an error as the service has worded it.
func plainError(err error) error {
	var inner interface{ GRPCStatus() *status.Status } // without what the SDK says around it
	if !errors.As(err, &inner) {
		return err
	}
	s := inner.GRPCStatus()
	text := strings.TrimSpace(s.Message())
	if cause, ok := strings.CutPrefix(text, `connection error: desc = "transport: `); ok {
		text = strings.TrimSuffix(cause, `"`)
	}
	if s.Code() == codes.Unauthenticated {
		text += ": see whether MODAL_TOKEN_ID and MODAL_TOKEN_SECRET are of one token, which modal token new makes"
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
		return atoll.ErrNotExist // something of Modal's: sandboxes are what is written of them
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

// imageError is what it means that Modal cannot build an image.
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
	if _, cause, ok := strings.Cut(text, "failed with the exception:"); ok { // before it, the SDK names what Modal calls the image
		text = cause
	}
	return atoll.Errorf("create", "", kind, "image %s: %s", ref, strings.TrimSpace(text))
}

// unreachableError is the error of what cannot be reached in a sandbox.
func unreachableError(op, id, what string, err error) error {
	kind := atoll.ErrUnavailable
	if k := kindOf(err); k == atoll.ErrDenied || k == atoll.ErrExhausted || k == atoll.ErrInternal && status.Code(err) == codes.Internal {
		kind = k
	}
	return atoll.Errorf(op, id, kind, "%s cannot be reached: %w", what, plainError(err))
}

// isCode reports whether the service has answered with that code.
func isCode(err error, code codes.Code) bool {
	return err != nil && status.Code(err) == code
}
