package s3

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/middleware"

	"github.com/seed46cd37a8/atoll/internal/awsclient"
)

// client is how the service is asked.
func (o *Options) client() awsclient.Options {
	c := awsclient.Options{
		Region: o.Region, CA: o.CA, Attempts: o.Attempts, Backoff: o.Backoff, Stall: o.Stall, Retryable: retryable,
	}
	if o.Credentials != nil {
		c.Credentials = func(ctx context.Context) (awsclient.Credentials, error) {
			keys, err := o.Credentials(ctx)
			return awsclient.Credentials(keys), err
		}
	}
	return c
}

// signBodies has the SHA-256 of what is sent signed over TLS, too, where the SDK leaves
// it out.
func signBodies(stack *middleware.Stack) error {
	sum := &v4.ComputePayloadSHA256{}
	if _, ok := stack.Finalize.Get(sum.ID()); !ok {
		return nil
	}
	_, err := stack.Finalize.Swap(sum.ID(), sum)
	return err
}

// backoff is how long to wait after so many attempts.
func backoff(attempt int, most time.Duration) time.Duration { return awsclient.Backoff(attempt, most) }

// retryable adds to what is so of all services.
func retryable(err error) aws.Ternary {
	var reader *readerError
	if errors.As(err, &reader) {
		return aws.FalseTernary
	}
	if code := codeOf(err); code == codeBusy || code == "OperationAborted" {
		return aws.TrueTernary
	}
	return aws.UnknownTernary
}
