/* The thread pool: one for the process, shared by all models, so that threads never outnumber cores.
 *
 * Between jobs the workers spin for a moment, since the next job is usually near, and then sleep. The caller is
 * thread 0. It never waits for a worker that has not joined the job: on a busy machine it does all the work itself.
 * A forked child starts without workers and creates its own when it needs them.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "native.h"

#define MOST_THREADS 256
#define SPINS_BEFORE_SLEEP 20000
#define CLOSED 0x40000000

static pthread_mutex_t one_job_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sleeping = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int threads = 1, started = 0;
static int sleepers;          /* workers that wait for `wake` */
static unsigned generation;   /* counts jobs: a change tells the workers of a new one */
static int joined = CLOSED;   /* workers that run the job; CLOSED is set while there is no job to join */
static gl_job *job;
static void *argument;
static __thread int at_work;  /* whether this thread runs a job */

static int join(void) {
    int now = __atomic_load_n(&joined, __ATOMIC_ACQUIRE);
    while (!(now & CLOSED))
        if (__atomic_compare_exchange_n(&joined, &now, now + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return 1;
    return 0;
}

static void *work(void *index) {
    unsigned seen = 0;
    for (;;) {
        for (int spins = 0; __atomic_load_n(&generation, __ATOMIC_ACQUIRE) == seen;) {
            if (++spins < SPINS_BEFORE_SLEEP) {
                gl_rest(0);
                continue;
            }
            pthread_mutex_lock(&sleeping);
            sleepers++;
            while (__atomic_load_n(&generation, __ATOMIC_ACQUIRE) == seen) pthread_cond_wait(&wake, &sleeping);
            sleepers--;
            pthread_mutex_unlock(&sleeping);
        }
        seen = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
        if (!join()) continue;
        at_work = 1;
        job(argument, (int)(intptr_t)index);
        at_work = 0;
        __atomic_sub_fetch(&joined, 1, __ATOMIC_ACQ_REL);
    }
    return NULL;
}

/* Only the forking thread exists in the child: there are no workers, and no lock is held. */
static void after_fork_in_child(void) {
    pthread_mutex_init(&one_job_at_a_time, NULL);
    pthread_mutex_init(&sleeping, NULL);
    pthread_cond_init(&wake, NULL);
    started = sleepers = 0;
    generation = 0;
    joined = CLOSED;
}

static void before_fork(void) { pthread_mutex_lock(&one_job_at_a_time); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&one_job_at_a_time); }

static void start_workers(void) {
    static int registered;
    if (!registered) registered = 1, pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (started = 1; started < threads; started++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, work, (void *)(intptr_t)started)) break;
    }
    threads = started; /* the system may have refused some */
    pthread_attr_destroy(&attributes);
}

/* Sets the size of the pool, which all models share; has no effect after the first job. Returns the size in force. */
int gl_set_threads(int wanted) {
    pthread_mutex_lock(&one_job_at_a_time);
    if (!started) threads = wanted < 1 ? 1 : wanted > MOST_THREADS ? MOST_THREADS : wanted;
    int count = threads;
    pthread_mutex_unlock(&one_job_at_a_time);
    return count;
}

int gl_threads(void) { return threads; }

void gl_parallel(gl_job *wanted, void *data) {
    if (at_work) {
        wanted(data, 0);
        return;
    }
    pthread_mutex_lock(&one_job_at_a_time);
    if (!started) start_workers();
    job = wanted;
    argument = data;
    __atomic_store_n(&joined, 0, __ATOMIC_RELEASE);
    __atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
    if (threads > 1) {
        pthread_mutex_lock(&sleeping);
        if (sleepers) pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&sleeping);
    }
    at_work = 1;
    wanted(data, 0);
    at_work = 0;
    __atomic_or_fetch(&joined, CLOSED, __ATOMIC_ACQ_REL);
    for (int spins = 0; __atomic_load_n(&joined, __ATOMIC_ACQUIRE) != CLOSED; spins++) gl_rest(spins);
    pthread_mutex_unlock(&one_job_at_a_time);
}
