package secretstore

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/awsclient"
)

// Limits of requests to AWS.
const (
	awsAttempts = 3
	awsBackoff  = time.Second
	awsStall    = 10 * time.Second
)

const awsService = "AWS Secrets Manager"

// readAWS returns the value of SECRET, a name or an ARN, or of a field of the JSON that it is. The configuration is that of AWS's own
// tools.
func (r request) readAWS(ctx context.Context) (string, error) {
	id, field, inJSON := strings.Cut(r.rest, "#") // no name has this character
	if id == "" || inJSON && field == "" {
		return "", r.newError(atoll.ErrInvalid, "write it like aws:NAME or aws:NAME#FIELD")
	}
	opts := awsclient.Options{Attempts: awsAttempts, Backoff: awsBackoff, Stall: awsStall}
	if parsed, err := arn.Parse(id); err == nil {
		opts.Region = parsed.Region
	}
	cfg, client, err := awsclient.Load(ctx, opts)
	if err != nil {
		return "", r.newError(atoll.ErrInvalid, "%w", err)
	}
	defer client.CloseIdleConnections()
	if cfg.Region == "" {
		return "", r.newError(atoll.ErrInvalid, "no region: set AWS_REGION, or write the ARN of the secret")
	}
	out, err := secretsmanager.NewFromConfig(cfg).GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &id})
	if err != nil {
		return "", r.describeAWS(err)
	}
	if out.SecretString == nil {
		return "", r.newError(atoll.ErrInvalid, "the secret is binary: store text")
	}
	text := aws.ToString(out.SecretString)
	if !inJSON {
		return text, nil
	}
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &object) != nil { // its error could have a part of the value
		return "", r.newError(atoll.ErrInvalid, "the secret is not a JSON object, so it has no field %q", field)
	}
	return r.pickField(object, field)
}

// describeAWS returns the error of a request that says what to do.
func (r request) describeAWS(err error) error {
	var creds *awsclient.CredentialsError
	if errors.As(err, &creds) {
		return r.newError(atoll.ErrDenied, "no credentials for %s: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with a profile (%v)", awsService, creds)
	}
	if why := awsclient.DescribeUnreachable(err, awsService); why != "" {
		return r.newError(atoll.ErrUnavailable, "%s", why)
	}
	switch code := awsclient.Code(err); code {
	case "ResourceNotFoundException":
		return r.newError(atoll.ErrNotExist, "no such secret: check its name and the region")
	case "AccessDeniedException", "DecryptionFailure":
		return r.newError(atoll.ErrDenied, "%s: allow secretsmanager:GetSecretValue, and kms:Decrypt for a key of your own", code)
	case "UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "ExpiredTokenException", "ExpiredToken":
		return r.newError(atoll.ErrDenied, "%s: the credentials are wrong or have expired: log in again", code)
	case "InvalidRequestException":
		return r.newError(atoll.ErrNotExist, "the secret is about to be deleted: restore it")
	case "InvalidParameterException", "ValidationException":
		return r.newError(atoll.ErrInvalid, "%s does not take this name", awsService)
	case "":
		return r.newError(atoll.KindOf(err), "%s: %w", awsService, awsclient.Root(err))
	default:
		return r.newError(atoll.ErrUnavailable, "%s answered with %s", awsService, code)
	}
}
