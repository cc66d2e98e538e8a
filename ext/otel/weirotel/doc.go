// Package weirotel reports metrics of weir to OpenTelemetry, and a trace for each
// element.
//
//	metrics, err := weirotel.NewMetrics("payments", otel.GetMeterProvider())
//	if err != nil {
//		return err
//	}
//	op := asyncop.OrderedWait(asyncop.Blocking(pay), 5*time.Second, 100,
//		asyncop.WithName("payments"),
//		asyncop.WithObserver(metrics),
//		asyncop.WithObserver(weirotel.NewTraces("payments", otel.GetTracerProvider())))
//
// Either can be used without the other.
//
// # Traces
//
// An element has a span from its acceptance to its end, and each attempt a span below it,
// which its context carries. So clients that the function calls make children of it. A
// retry is an event of the element's span.
//
//	payments              or, for a message from the topic orders: process orders
//	├── payments attempt  failed; event "weir.retry" on the span above
//	│   └── POST
//	└── payments attempt
//	    └── POST
//
// The element's span begins a trace, or is a child of the span in the operator's context
// ([asyncop.WithContext]). A message ([message.MetaFromContext]) has its sender's trace
// in its headers, as W3C traceparent. By the semantic conventions for messaging, the
// element's span has a link to it; [WithMessageParent] makes it a child.
//
// The context of a call for many elements ([asyncop.Batched]) has no span. Begin a span
// with links to the spans of its members ([asyncop.MemberContexts]).
//
// With a sampler that follows the parent, attempts are sampled as their element is. An
// unsampled span still costs a little; an operator without traces avoids that.
//
// The operator's log lines about an element have its span's context, so a [log/slog]
// handler can add the trace ids.
//
// Attributes of the span of an element:
//
//	weir.operator.name                the name that NewTraces was given
//	weir.element.restored             true if it comes from a checkpoint
//	weir.element.ending               emitted, empty, handed_over, dropped, failed,
//	                                  abandoned, kept or discarded
//	weir.element.attempts             calls begun, those before a restart included
//	weir.element.results              how many were emitted
//	weir.element.in_doubt             true if it may have taken effect, and was not emitted
//	weir.reason                       of the last outcome, if a classifier has named it
//	error.type                        of a failure: its reason, or its Go type
//	messaging.operation.name, .type   "process"; this and the following only of messages
//	messaging.system                  "weir", unless WithAttributes sets another
//	messaging.message.id              Meta.ID
//	messaging.destination.name        Meta.Origin.Source
//	messaging.destination.partition.id  Meta.Origin.Partition
//	weir.message.visit                Meta.Visit
//
// Attributes of the span of an attempt: weir.operator.name, weir.attempt.number (from 1),
// weir.attempt.results, weir.reason, error.type. An element or attempt with an error has
// the status Error, and the error is recorded. Elements kept in a checkpoint have no
// status: they are called again after the restart, in another trace.
//
// # Metrics
//
// All have the attribute weir.operator.name. Counters and gauges are read from the
// operator when metrics are collected.
//
//	weir.elements.accepted, .timed_out             counters, {element}
//	weir.elements.ended                            counter, {element}; by weir.element.ending
//	weir.element.failures                          counter, {element}; the ten largest groups,
//	                                               by weir.error and weir.reason
//	weir.elements.in_doubt                         counter, {element}
//	weir.elements.capacity, .in_flight, .waiting_for_retry,
//	.waiting_for_key, .waiting_to_leave, .deciding up-down counters, {element}
//	weir.elements.oldest_age                       gauge, s
//	weir.last_error.age                            gauge, s; 0 before the first error
//	weir.results.emitted                           counter, {result}
//	weir.attempts, weir.attempts.timed_out         counters, {attempt}
//	weir.attempts.ended                            counter, {attempt}; by weir.attempt.outcome (result, empty, error) and weir.reason
//	weir.calls.limit, .running                     up-down counters, {call}
//	weir.completions.late                          counter, {completion}
//	weir.retries                                   counter, {attempt}; by weir.cause: result, error
//	weir.retries.refused                           counter, {element}; by weir.cause: strategy, budget, too_many_waiting, end_of_input
//	weir.attempt.duration                          histogram, s
//	weir.element.duration                          histogram, s
//	weir.element.queue.duration                    histogram, s
//	weir.retry.backoff                             histogram, s
//	messaging.process.duration                     histogram, s; of messages, as weir.element.duration, with messaging.system,
//	                                               messaging.operation.name, messaging.destination.name and error.type
//
// [ObserveCheckpoints] adds metrics of a pipeline's checkpoints, with the attribute
// weir.pipeline.name:
//
//	weir.checkpoints                               counter, {checkpoint}; by weir.checkpoint.result: completed, failed
//	weir.checkpoint.failures_in_row                gauge, {checkpoint}
//	weir.checkpoint.last_success                   gauge, s since 1970; missing until there was one in this process
//	weir.checkpoint.under_way_since                gauge, s since 1970; missing if none is under way
//	weir.checkpoint.last_duration                  gauge, s
//	weir.checkpoint.last_size                      gauge, By
//
// [ObserveWorker] adds metrics of a [delivery.Run], with the attribute weir.worker.name:
//
//	weir.worker.messages.received                  counter, {message}
//	weir.worker.messages.redelivered               counter, {message}; of these: failed in an earlier visit
//	weir.worker.messages.settled                   counter, {message}; by weir.settlement: done, handed_over, rejected, failed,
//	                                               released
//	weir.worker.messages.in_flight                 up-down counter, {message}
//	weir.worker.leases.lost                        counter, {lease}: their messages were delivered again while the worker had them
//	weir.worker.settlements.refused                counter, {settlement}: the engine has refused to record how a message was settled
//	weir.worker.clock_offset                       gauge, s: how far the engine's clock was ahead of the machine's, at the last heartbeat
//	weir.worker.floods                             counter, {flood}
//	weir.worker.state                              up-down counter, {worker}; by weir.state: 1 for starting, receiving, failing, flooded,
//	                                               paused, draining or ended
//
// [ObservePartitions] adds metrics of a [partitions.Run], with the attribute
// weir.pipeline.name:
//
//	weir.partitions                                up-down counter, {partition}; by weir.state: running, failing, leaving, ended, of this
//	                                               worker; unowned: without an owner, if the assigner reports that
//	weir.partitions.lost                           counter, {partition}
//	weir.partition.lag                             gauge, {element}; by weir.partition.name. Missing if the input does not know
//
// [ObserveQueues] adds metrics of queues of a store, with the attribute weir.queue.name:
//
//	weir.queue.messages                            gauge, {message}; by weir.cause: of dead letters, or ""
//	weir.queue.oldest_age                          gauge, s
//	weir.queue.reason.messages                     gauge, {message}; by weir.reason. A message counts once for each of its reasons
//	weir.queue.count_failures                      counter, {count}; counts that failed: otel.Handle gets their errors
//
// [ObserveResults] adds metrics of the answers that a service keeps, with the attribute
// weir.service.name:
//
//	weir.answers.clients                           up-down counter, {client}
//	weir.answers.records, .in_progress             up-down counters, {request}
//	weir.answers.bytes                             up-down counter, By
//	weir.answers.requests                          counter, {request}; by weir.outcome: new, attached, replayed, stale, invalid, mismatch,
//	                                               full, too_many_waiting
//
// [ObserveKeys] adds metrics of requests with idempotency keys in a database, with the
// same attribute:
//
//	weir.keys.records, .unfinished, .overdue       up-down counters, {request}
//	weir.keys.clients                              up-down counter, {user}
//	weir.keys.count_failures                       counter, {count}; counts that failed: otel.Handle gets their errors
//	weir.keys.requests                             counter, {request}; by weir.outcome: new, resumed, replayed, in_progress, mismatch,
//	                                               invalid
//	weir.keys.runs.stale                           counter, {run}: another run has taken over their request
//	weir.keys.collected                            counter, {request}: removed after their retention
//
// [ObserveBackends] adds metrics of backends, with the attribute weir.backend.name:
//
//	weir.backend.state                             gauge, 1 or 0; by weir.backend.state: up, down, probing, ramping, held
//	weir.backend.state_since                       gauge, s since 1970
//	weir.backend.limit                             gauge, {call}; missing without a limit
//	weir.backend.in_use                            gauge, {call}
//	weir.backend.waiting                           gauge, {operator}
//	weir.backend.tenants_paused,
//	weir.backend.tenants_down                      gauges, {tenant}
//	weir.backend.retries_left                      gauge, {retry}: of the budget; missing without one
//	weir.backend.attempts, .attempts_lost,
//	weir.backend.attempts_throttled                counters, {attempt}
//	weir.backend.retries_refused                   counter, {retry}
//	weir.backend.trips, .tenant_trips,
//	weir.backend.would_have_tripped                counters, {trip}
//
// Names for messages and errors follow the semantic conventions.
package weirotel
