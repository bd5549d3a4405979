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

// Error codes of services that more than one place compares.
const (
	codeBusy     = "ConditionalRequestConflict" // another client is writing the object
	codeChanged  = "PreconditionFailed"
	codeNoUpload = "NoSuchUpload"
	codeNoBucket = "NoSuchBucket"
	codeInTheWay = "ExistingObjectIsDirectory" // see Bucket.lostRace
)

// A readerError is an error of the reader passed to Put.
type readerError struct{ err error }

func (e *readerError) Error() string { return e.err.Error() }
func (e *readerError) Unwrap() error { return e.err }

// errNotS3 is the error for a response that no S3 service gives.
var errNotS3 = errors.New("not a response of an S3 service")

func codeOf(err error) string { return awsclient.Code(err) }

func statusOf(err error) int { return awsclient.Status(err) }

// isNotXML reports whether a response could not be parsed at all.
func isNotXML(err error) bool {
	var bad *smithy.DeserializationError
	var syntax *xml.SyntaxError
	return errors.Is(err, errNotS3) || errors.As(err, &bad) || errors.As(err, &syntax)
}

// wrapError returns the error of a method, with its kind and advice.
func (b *Bucket) wrapError(ctx context.Context, op, key string, err error) error {
	id := b.String()
	if key != "" {
		id += "/" + key
	}
	if ended := ctx.Err(); ended != nil {
		return atoll.E(op, id, atoll.KindOf(ended), ended)
	}
	kind, text := b.explainError(op, err)
	if text != "" {
		return atoll.E(op, id, kind, &explained{text, err})
	}
	return atoll.E(op, id, kind, err)
}

// An explained error replaces the text of its cause by an explanation.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// serviceName returns the name of the service for error texts.
func (b *Bucket) serviceName() string {
	if b.endpoint == "" {
		return "AWS"
	}
	return b.endpoint
}

// explainError returns the kind of an error and an explanation, "" if its own text is
// enough.
func (b *Bucket) explainError(op string, err error) (atoll.Kind, string) {
	var reader *readerError
	var creds *awsclient.CredentialsError
	switch {
	case errors.As(err, &reader):
		return atoll.KindOf(reader.err), reader.Error()
	case errors.As(err, &creds):
		return atoll.ErrDenied, creds.Advice(b.serviceName())
	}
	if kind, text := b.explainCode(op, err); kind != "" {
		return kind, text
	}
	if kind, text := b.explainConn(err); kind != "" {
		return kind, text
	}
	return b.explainStatus(op, err)
}

// explainCode explains a response with an S3 error code.
func (b *Bucket) explainCode(op string, err error) (atoll.Kind, string) {
	var api smithy.APIError
	if !errors.As(err, &api) {
		return "", ""
	}
	says := api.ErrorMessage()
	switch code := api.ErrorCode(); code {
	case "NoSuchKey":
		return atoll.ErrNotExist, "no such object"
	case "NotFound": // the SDK's code for a 404 without a body
		if op == "stat" {
			return atoll.ErrNotExist, "no such object or bucket"
		}
		return "", ""
	case codeNoBucket:
		return atoll.ErrNotExist, fmt.Sprintf("no bucket %q at %s: create it or correct its name", b.name, b.serviceName())
	case codeChanged:
		return atoll.ErrConflict, "the object changed meanwhile: the condition of this write doesn't hold"
	case codeBusy:
		return atoll.ErrConflict, "another client is writing the object"
	case codeNoUpload:
		return atoll.ErrUnavailable, "the service removed parts during the upload: try again"
	case "AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "UnauthorizedAccess":
		return atoll.ErrDenied, fmt.Sprintf("the credentials do not allow %s: change the policy of their user or of the bucket (%s)", op, says)
	case "InvalidAccessKeyId", "XAdminUserNotFound":
		return atoll.ErrDenied, fmt.Sprintf("%s does not know the access key", b.serviceName())
	case "SignatureDoesNotMatch":
		return atoll.ErrDenied, "the signature is wrong: the secret key does not belong to the access key, or a proxy on the way changes requests"
	case "RequestTimeTooSkewed", "RequestExpired", "RequestNotYetValid":
		return atoll.ErrDenied, "the clocks of this machine and the service differ too much: set this machine's clock (" + says + ")"
	case "ExpiredToken", "TokenRefreshRequired", "InvalidToken":
		return atoll.ErrDenied, "the credentials have expired: renew them"
	case "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return atoll.ErrInvalid, b.explainRegion(err, says)
	case "EntityTooLarge", "QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "TooManyParts":
		return atoll.ErrExhausted, says
	case "KeyTooLongError", "InvalidURI", "InvalidBucketName", "InvalidObjectName", "XMinioInvalidObjectName":
		return atoll.ErrInvalid, says
	case "NotImplemented", "MethodNotAllowed":
		return atoll.ErrUnsupported, fmt.Sprintf("%s doesn't support this request (%s)", b.serviceName(), says)
	case "ObjectParentIsFile", codeInTheWay, "XMinioParentIsObject", "XMinioObjectExistsAsDirectory":
		return atoll.ErrUnsupported, fmt.Sprintf("%s cannot store an object at this key and others below it, since it keeps objects in directories", b.serviceName())
	case "InvalidObjectState":
		return atoll.ErrUnavailable, "the object is archived: restore it first"
	default:
		if !isTransient(code) {
			return "", ""
		}
		return atoll.ErrUnavailable, fmt.Sprintf("%s is busy or has a problem: try again later (%s: %s)", b.serviceName(), code, says)
	}
}

// isTransient reports whether a repeated request may succeed after this code.
func isTransient(code string) bool {
	switch code {
	case "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted", "Throttling":
		return true
	}
	return false
}

// explainRegion describes a bucket that is in another region.
func (b *Bucket) explainRegion(err error, says string) string {
	region := b.client.Options().Region
	var r *smithyhttp.ResponseError
	if errors.As(err, &r) && r.Response != nil {
		if other := r.Response.Header.Get("X-Amz-Bucket-Region"); other != "" && other != region {
			return fmt.Sprintf("the bucket is in region %s, not in %s: set region to %[1]s", other, region)
		}
	}
	return fmt.Sprintf("the bucket is not in region %s: set its region or endpoint (%s)", region, says)
}

// explainConn explains a missing response, and one that doesn't come from an S3
// service.
func (b *Bucket) explainConn(err error) (atoll.Kind, string) {
	if text := awsclient.DescribeUnreachable(err, b.serviceName()); text != "" {
		return atoll.ErrUnavailable, text
	}
	if isNotXML(err) && statusOf(err) < 500 {
		return atoll.ErrUnavailable, fmt.Sprintf("the server at %s does not speak S3: correct the endpoint", b.serviceName())
	}
	return "", ""
}

// explainStatus explains a response without a known code by its HTTP status.
func (b *Bucket) explainStatus(op string, err error) (atoll.Kind, string) {
	status := statusOf(err)
	said := fmt.Sprintf("%s answered %d %s", b.serviceName(), status, http.StatusText(status))
	if code := codeOf(err); code != "" {
		said = fmt.Sprintf("%s answered %s (%d)", b.serviceName(), code, status)
	}
	switch {
	case status == http.StatusNotFound && op == "stat": // a HEAD response has no body
		return atoll.ErrNotExist, said
	case status == http.StatusNotFound:
		return atoll.ErrUnavailable, said + " without an S3 error, so it may not be an S3 service: correct the endpoint"
	case status == http.StatusPreconditionFailed:
		return atoll.ErrConflict, "the object changed meanwhile: the condition of this write doesn't hold"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return atoll.ErrDenied, said + ": the credentials do not allow it"
	case status == http.StatusRequestEntityTooLarge, status == http.StatusInsufficientStorage:
		return atoll.ErrExhausted, said
	case status == http.StatusNotImplemented, status == http.StatusMethodNotAllowed:
		return atoll.ErrUnsupported, said
	case status >= 300 && status < 400:
		return atoll.ErrInvalid, b.explainRegion(err, said)
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		return atoll.ErrUnavailable, said + ": try again later"
	case status >= 400:
		return atoll.ErrInvalid, fmt.Sprintf("%s: %v", said, awsclient.Root(err))
	}
	return atoll.KindOf(err), ""
}
