// Package outboxwebhook posts events to HTTP endpoints, as a publisher of package forward.
//
//	import outboxwebhook "github.com/txoutbox/outbox/publish/webhook"
//
//	publisher, err := outboxwebhook.New(outboxwebhook.Config{Secrets: secretsOf})
//	…
//	forward.Register(reg, OrderPlaced, publisher, forward.Route(endpointOf))
//
// forward.Route gives the endpoint's URL. A request has the payload as its body, the attributes of
// CloudEvents as headers (ce-id, ce-type, …), and webhook-id, webhook-timestamp and
// webhook-signature of Standard Webhooks. The webhook-id is the event's id, the same in every
// attempt.
//
// The answer decides on the event:
//
//   - A status of 2xx: it is done.
//   - 410: it is a dead letter, as are later events of the endpoint within Config.GoneFor.
//   - 413, a URL that is not valid, and an address that is refused: it is a dead letter.
//   - 429 and 503 with Retry-After: it is sent again after that time, an hour at most. No attempt
//     counts for three days, or the time of handlers.MaxElapsed. Other events of the endpoint wait
//     as long. A Retry-After of 0, in the past or not valid is none.
//   - Anything else: it is retried as after any failed attempt. So is a redirect (3xx), which is
//     not followed, and a name whose addresses are all refused.
//
// Endpoints are other people's, so addresses that are not public are refused: loopback, private,
// link-local and the like. The check is on the address that is dialled, so a name that resolves to
// one later is refused as well. No proxy is used.
//
// One slow endpoint does not hold up the others. A call of Publish waits for a request for a
// second. Then the request goes on in the background, and its event comes back for the answer.
// Meanwhile other events of the endpoint wait. An endpoint that does not answer in time gets one
// request at a time, with pauses of up to a minute between them. If the relay dies meanwhile, or
// another one has the event next, the event is sent again. So a repetition of an event may arrive
// after the next one of its ordering key.
package outboxwebhook
