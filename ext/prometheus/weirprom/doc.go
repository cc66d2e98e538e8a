// Package weirprom exports metrics of weir to Prometheus.
//
//	metrics := weirprom.New("payments")
//	prometheus.MustRegister(metrics)
//	op := asyncop.OrderedWait(asyncop.Blocking(pay), 5*time.Second, 100,
//		asyncop.WithName("payments"),
//		asyncop.WithObserver(metrics))
//
// # Metrics of an operator
//
// All have the label operator, the name given to [New].
//
//	weir_elements_accepted_total                 elements that took a slot
//	weir_elements_ended_total{how}               how they ended: emitted, empty, handed_over, dropped, failed, abandoned, kept, discarded
//	weir_elements_in_doubt_total                 of these: an attempt may have taken effect although the element was not emitted
//	weir_elements_timed_out_total                elements whose total time ran out
//	weir_elements_rescued_total                  elements with results that a handler returned in place of a failure: asyncop.HandleFailure
//	weir_element_failures_total{error, reason}   handed over or dropped, by what the errors have in common: the ten groups with the most
//	weir_results_emitted_total                   results sent downstream
//	weir_attempts_total                          calls begun, retries included
//	weir_attempts_ended_total{outcome, reason}   outcome: result, empty, error; reason: as a classifier has named it, or ""
//	weir_attempts_timed_out_total                attempts whose own time ran out
//	weir_completions_late_total                  completions that came too late
//	weir_retries_total{cause}                    retries begun because of a result, or of an error
//	weir_retries_refused_total{cause}            elements that asked for a retry and got none, because of: strategy, budget,
//	                                             too_many_waiting, end_of_input
//	weir_elements_capacity                       slots
//	weir_elements_in_flight                      elements with a slot
//	weir_elements_waiting_for_retry              of these, in back-off or waiting for a permit for their retry
//	weir_elements_waiting_for_key                of these, waiting for another element of their key, or for its call
//	weir_elements_waiting_to_leave               of these, complete: older ones or downstream
//	                                             delay them
//	weir_elements_deciding                       of these, whose strategy is being asked off the loop
//	weir_calls_limit                             calls that may run at once
//	weir_calls_running                           calls that run, even after the end of their operator
//	weir_oldest_element_age_seconds              since the oldest element in flight took its slot; 0 if there is none
//	weir_last_error_age_seconds                  since the last failed attempt; 0 before the
//	                                             first
//	weir_attempt_duration_seconds                histogram: from the begin of an attempt until its end is known
//	weir_element_duration_seconds                histogram: from the slot to the end of an element, over all attempts
//	weir_element_queue_duration_seconds          histogram: from the slot to the first attempt
//	weir_retry_backoff_seconds                   histogram: the waits before retries
//
// An element that comes after the operator has stopped reading is discarded, without a
// duration. After 100 different reasons, new ones count as "other".
//
// # Metrics of checkpoints
//
// [NewCheckpoints] collects them, with the label pipeline:
//
//	weir_checkpoints_completed_total
//	weir_checkpoints_failed_total
//	weir_checkpoint_failures_in_row                  since the last that completed
//	weir_checkpoint_last_success_timestamp_seconds   0 until there was one in this process
//	weir_checkpoint_under_way_since_timestamp_seconds   0 if none is under way
//	weir_checkpoint_last_duration_seconds
//	weir_checkpoint_last_size_bytes
//
// # Metrics of workers
//
// [NewWorker] collects metrics of a [delivery.Run], with the label worker:
//
//	weir_worker_messages_received_total
//	weir_worker_messages_redelivered_total           of these: failed in an earlier visit
//	weir_worker_messages_settled_total{settlement}      settlement: done, handed_over, rejected, failed, released
//	weir_worker_messages_in_flight                   received and not settled
//	weir_worker_leases_lost_total                    messages that were delivered again while the worker had them
//	weir_worker_settlements_refused_total            how often the engine has refused to record how a message was settled
//	weir_worker_clock_offset_seconds                 how far the engine's clock was ahead of the machine's, at the last heartbeat
//	weir_worker_floods_total                         how often the flood guard has stopped the worker
//	weir_worker_state{state}                         1 for the state it is in: starting, receiving, failing, flooded, paused, draining, ended
//
// # Metrics of partitions
//
// [NewPartitions] collects metrics of a [partitions.Run], with the label pipeline:
//
//	weir_partitions{state}                           of this worker: running, failing, leaving, ended; unowned: without an owner, as far as
//	                                                 this worker knows; missing if the assigner does not report that
//	weir_partitions_lost_total                       how often the worker has lost a partition
//	weir_partition_lag{partition}                    elements that were not read yet; missing if the input does not know
//
// # Metrics of queues
//
// [NewQueues] collects metrics of dead letters, layers, outboxes and other queues of a
// store, with the label queue:
//
//	weir_queue_messages{cause}                       cause: of dead letters, or ""
//	weir_queue_oldest_age_seconds
//	weir_queue_counted_timestamp_seconds             when: a long queue is not counted at each scrape, and a count may fail
//	weir_queue_count_failures_total                  counts that failed
//	weir_queue_reason_messages{reason}               a message counts once for each of its reasons
//
// # Metrics of backends
//
// [NewBackends] collects them, with the label backend. The log and the command weir
// backend list show why a backend is down.
//
//	weir_backend_state{state}                        1 for the state it is in: up, down, probing, ramping, held; else 0
//	weir_backend_state_since_timestamp_seconds
//	weir_backend_limit                               calls at a time; missing without a limit
//	weir_backend_in_use                              calls that run
//	weir_backend_waiting                             operators that wait
//	weir_backend_tenants_paused
//	weir_backend_tenants_down                        down, probing or held
//	weir_backend_retries_left                        of the retry budget; missing without one
//	weir_backend_attempts_total
//	weir_backend_attempts_lost_total
//	weir_backend_attempts_throttled_total            the service asked for fewer calls
//	weir_backend_retries_refused_total               by the retry budget
//	weir_backend_trips_total
//	weir_backend_tenant_trips_total
//	weir_backend_would_have_tripped_total             in a dry run
//
// # Metrics of a server
//
// [NewResults] collects metrics of the answers that a service keeps, with the label
// service:
//
//	weir_answers_clients                             clients that are remembered
//	weir_answers_records                             requests that run or have an answer
//	weir_answers_in_progress                         of these: they run
//	weir_answers_bytes                               as they count for MaxBytes
//	weir_answers_requests_total{outcome}             outcome: new, attached, replayed, stale, invalid, mismatch, full, too_many_waiting
//
// [NewKeys] collects metrics of requests with idempotency keys in a database, with the
// same label:
//
//	weir_keys_records                                requests in the table
//	weir_keys_unfinished                             of these
//	weir_keys_overdue                                of those: past their retention
//	weir_keys_clients                                users with requests
//	weir_keys_counted_timestamp_seconds              when: a long table is not counted at each scrape, and a count may fail
//	weir_keys_count_failures_total                   counts that failed
//	weir_keys_requests_total{outcome}                outcome: new, resumed, replayed, in_progress, mismatch, invalid
//	weir_keys_runs_stale_total                       runs whose request another run has taken over
//	weir_keys_collected_total                        finished requests that were removed after their retention
//
// # Histograms
//
// Each histogram is both native, with buckets that grow by 9 %, and classic, with the
// buckets of [WithBuckets]. A server takes the native form if it scrapes native
// histograms.
//
// # Cost
//
// An element costs about 100 ns of processor time more (measured: 75 to 150), one reading
// of the clock included, and no allocation. Counters and gauges are read from the
// operator at the scrape. Each step of its loop hands over its measurements once, and
// durations are counted in arrays, under a lock that only a scrape contends for.
//
// An observer around [Metrics], such as a type that embeds them, is called for each
// element and attempt, like any [observe.Observer]: about 300 ns, and an allocation for
// an element that is not a pointer. BenchmarkResults measures both.
package weirprom
