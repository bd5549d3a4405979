package s3

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/awsclient"
)

// Codes of services that are looked at in more than one place.
const (
	codeBusy     = "ConditionalRequestConflict" // somebody else writes the object
	codeChanged  = "PreconditionFailed"
	codeNoUpload = "NoSuchUpload"
	codeNoBucket = "NoSuchBucket"
	codeInTheWay = "ExistingObjectIsDirectory" // see Bucket.outrun
)

// A readerError is one of the reader that Put was given.
type readerError struct{ err error }

func (e *readerError) Error() string { return e.err.Error() }
func (e *readerError) Unwrap() error { return e.err }

// errNotS3 is that of an answer that no service gives.
var errNotS3 = errors.New("the answer is not one of S3")

func codeOf(err error) string { return awsclient.Code(err) }

func statusOf(err error) int { return awsclient.Status(err) }

// isNotXML reports whether an answer could not be read at all.
func isNotXML(err error) bool {
	var bad *smithy.DeserializationError
	var syntax *xml.SyntaxError
	return errors.Is(err, errNotS3) || errors.As(err, &bad) || errors.As(err, &syntax)
}

// fail is an error of a method: of which kind, and what to do about it.
func (b *Bucket) fail(ctx context.Context, op, key string, err error) error {
	id := b.String()
	if key != "" {
		id += "/" + key
	}
	if ended := ctx.Err(); ended != nil {
		return atoll.E(op, id, atoll.KindOf(ended), ended)
	}
	kind, text := b.explain(op, err)
	if text != "" {
		return atoll.E(op, id, kind, &explained{text, err})
	}
	return atoll.E(op, id, kind, err)
}

// An explained error says what its cause means.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// where is the service, for sentences.
func (b *Bucket) where() string {
	if b.endpoint == "" {
		return "AWS"
	}
	return b.endpoint
}

// explain is the kind of an error and a sentence, "" if it says enough itself.
func (b *Bucket) explain(op string, err error) (atoll.Kind, string) {
	var reader *readerError
	var creds *awsclient.CredentialsError
	switch {
	case errors.As(err, &reader):
		return atoll.KindOf(reader.err), reader.Error()
	case errors.As(err, &creds):
		return atoll.ErrDenied, creds.Advice(b.where())
	}
	if kind, text := b.explainCode(op, err); kind != "" {
		return kind, text
	}
	if kind, text := b.explainConn(err); kind != "" {
		return kind, text
	}
	return b.explainStatus(op, err)
}

// explainCode is about answers that have a code of S3.
func (b *Bucket) explainCode(op string, err error) (atoll.Kind, string) {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return "", ""
	}
	says := api.ErrorMessage()
	switch code := api.ErrorCode(); code {
	case "NoSuchKey":
		return atoll.ErrNotExist, "there is no such object"
	case "NotFound": // what the SDK calls a 404 that says nothing
		if op == "stat" {
			return atoll.ErrNotExist, "there is no such object, or no such bucket"
		}
		return "", ""
	case codeNoBucket:
		return atoll.ErrNotExist, fmt.Sprintf("there is no bucket %q at %s: make it, or correct its name", b.name, b.where())
	case codeChanged:
		return atoll.ErrConflict, "the object is not what it has to be for this write"
	case codeBusy:
		return atoll.ErrConflict, "somebody else writes the object"
	case codeNoUpload:
		return atoll.ErrUnavailable, "its parts were removed while it was written: try again"
	case "AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "UnauthorizedAccess":
		return atoll.ErrDenied, fmt.Sprintf("the credentials do not allow to %s there: the policy of their user, or of the bucket, has to (%s)", op, says)
	case "InvalidAccessKeyId", "XAdminUserNotFound":
		return atoll.ErrDenied, fmt.Sprintf("%s does not know the access key", b.where())
	case "SignatureDoesNotMatch":
		return atoll.ErrDenied, "the signature is wrong: the secret key does not belong to the access key, or a proxy on the way changes requests"
	case "RequestTimeTooSkewed", "RequestExpired", "RequestNotYetValid":
		return atoll.ErrDenied, "the clocks of this machine and the service differ too much: set this one's (" + says + ")"
	case "ExpiredToken", "TokenRefreshRequired", "InvalidToken":
		return atoll.ErrDenied, "the credentials are no longer valid: get others"
	case "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return atoll.ErrInvalid, b.elsewhere(err, says)
	case "EntityTooLarge", "QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "TooManyParts":
		return atoll.ErrExhausted, says
	case "KeyTooLongError", "InvalidURI", "InvalidBucketName", "InvalidObjectName", "XMinioInvalidObjectName":
		return atoll.ErrInvalid, says
	case "NotImplemented", "MethodNotAllowed":
		return atoll.ErrUnsupported, fmt.Sprintf("%s cannot do this (%s)", b.where(), says)
	case "ObjectParentIsFile", codeInTheWay, "XMinioParentIsObject", "XMinioObjectExistsAsDirectory":
		return atoll.ErrUnsupported, fmt.Sprintf("%s keeps objects in directories: it cannot have one at this key and others below it", b.where())
	case "InvalidObjectState":
		return atoll.ErrUnavailable, "the object is archived: restore it first"
	default:
		if !busy(code) {
			return "", ""
		}
		return atoll.ErrUnavailable, fmt.Sprintf("%s is busy, or has a problem: try again later (%s: %s)", b.where(), code, says)
	}
}

// busy reports whether a code is one that may be gone the next time.
func busy(code string) bool {
	switch code {
	case "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted", "Throttling":
		return true
	}
	return false
}

// elsewhere is about a bucket of another region.
func (b *Bucket) elsewhere(err error, says string) string {
	region := b.client.Options().Region
	var r *smithyhttp.ResponseError
	if errors.As(err, &r) && r.Response != nil {
		if other := r.Response.Header.Get("X-Amz-Bucket-Region"); other != "" && other != region {
			return fmt.Sprintf("the bucket is in the region %s, not in %s: set it", other, region)
		}
	}
	return fmt.Sprintf("the bucket is not where it was looked for, in the region %s: set its region, or its endpoint (%s)", region, says)
}

// explainConn is about answers that did not come, or not from a service.
func (b *Bucket) explainConn(err error) (atoll.Kind, string) {
	if text := awsclient.Unreached(err, b.where()); text != "" {
		return atoll.ErrUnavailable, text
	}
	if isNotXML(err) && statusOf(err) < 500 {
		return atoll.ErrUnavailable, fmt.Sprintf("what answers at %s does not speak S3: correct the endpoint", b.where())
	}
	return "", ""
}

// explainStatus is about answers that say no more than their status.
func (b *Bucket) explainStatus(op string, err error) (atoll.Kind, string) {
	status := statusOf(err)
	said := fmt.Sprintf("%s says %d %s", b.where(), status, http.StatusText(status))
	if code := codeOf(err); code != "" {
		said = fmt.Sprintf("%s says %s (%d)", b.where(), code, status)
	}
	switch {
	case status == http.StatusNotFound && op == "stat": // whose answer has no body
		return atoll.ErrNotExist, said
	case status == http.StatusNotFound:
		return atoll.ErrUnavailable, said + ", and no more, as no S3 does: correct the endpoint"
	case status == http.StatusPreconditionFailed:
		return atoll.ErrConflict, "the object is not what it has to be for this write"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return atoll.ErrDenied, said + ": the credentials do not allow it"
	case status == http.StatusRequestEntityTooLarge, status == http.StatusInsufficientStorage:
		return atoll.ErrExhausted, said
	case status == http.StatusNotImplemented, status == http.StatusMethodNotAllowed:
		return atoll.ErrUnsupported, said
	case status >= 300 && status < 400:
		return atoll.ErrInvalid, b.elsewhere(err, said)
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return atoll.ErrUnavailable, said + ": try again later"
	case status >= 400:
		return atoll.ErrInvalid, fmt.Sprintf("%s: %v", said, awsclient.Root(err))
	}
	return atoll.KindOf(err), ""
}
