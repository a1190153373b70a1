"""The extractive reader's word tables: what a relation asks for, the words it goes with, and a few closed lists.

Everything the reader knows about the world stands here: general English and geography, nothing of a collection.
"""

from __future__ import annotations

from typing import Final, Literal

Kind = Literal["person", "place", "country", "continent", "state", "group", "name", "date", "number", "thing"]
"""What is asked for; ``name`` is any proper name, ``thing`` an ordinary noun phrase."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(","))


# A line: the words that ask, the kind of answer, and the words found near it. A word's first line counts.
_RELATIONS: Final = """
spouse wife husband married | person | spouse wife husband married marriage widow
mother | person | mother son daughter
father | person | father son daughter
child son daughter | person | child children son daughter father mother parents
sibling brother sister | person | sibling brother sister
author writer wrote written | person | author writer wrote written novel novelist book
performer performed singer sang sings sing | person | performed recorded sung singer album song single track artist
composer composed lyricist songwriter | person | composed composer music opera written lyrics
director directed | person | directed director film
producer produced | person | produced producer producers
screenwriter | person | written screenplay
cast starring played plays actor actress portrayed | person | played portrayed starring stars actor actress
founder founded founders | person | founded founder founders established co-founded
creator created inventor invented | person | created creator invented designed devised
designer designed architect | person | designed architect designer
discovered discoverer | person | discovered discoverer found
editor | person | editor edited
leader ruler ruled charge head president governor mayor king queen chairperson chairman chancellor minister emperor | \
person | president governor mayor king queen leader minister prime chancellor elected emperor ruled head chief chairman
successor succeeded | person | succeeded successor followed
predecessor preceded | person | preceded predecessor replaced
killed assassinated murdered | person | killed assassinated murdered shot
publisher published | group | published publisher publishing
manufacturer manufactured made developer developed | group | manufactured manufacturer made produced developed \
developer
label | group | label records released signed
owner owned | group | owned owner acquired bought subsidiary
parent subsidiary | group | subsidiary owned parent division
operator operated | group | operated operator run
employer employed works worked | group | worked works professor employed joined employee staff researcher at
educated studied attended university college school graduated | group | educated studied attended graduated university \
college school degree student alumni
team club | group | played plays team club signed footballer drafted professional for
league | group | league plays
party | group | party member politician representing elected
company corporation organization organisation agency institution | group | company corporation founded
network broadcaster broadcast aired | group | aired broadcast network television channel
member | group | member members joined band
country citizenship nationality nation | country | country nation located in
continent | continent | in
state | state | state located in
capital | place | capital city
birth birthplace born native | place | born birth native in
death died die dies | place | died death buried in
burial buried | place | buried cemetery grave tomb
located location situated region district province | place | located situated in
territorial county township municipality | place | located situated in
formation formed | place | formed from in founded
headquarters headquartered based | place | headquarters headquartered based in
residence live lived lives | place | lived lives resides moved residence home in
border borders bordering bordered | place | border borders bordered bordering adjacent neighboring
city town village island area | place | city town village state in
river watercourse tributary mouth | place | river flows tributary empties joins into
water body lake sea ocean | place | river lake sea ocean bay coast flows
mountain range peak | place | mountain mountains range peak
licensed | place | licensed serving
language | name | language spoken written languages
religion | name | religion church follower believed
conflict war battle | name | war battle fought served campaign
award prize | name | award prize won received awarded
part | name | part range belongs
series | name | series episode
named | name | named name honor honour after
nickname acronym abbreviation alias pseudonym | name | known called nicknamed abbreviated nickname
follows followed | name | followed after next
occupation profession job | thing | was is
instance kind type sort | thing | is was a an
sport | thing | player footballer sport plays
genre | thing | genre music album
cause | thing | caused cause due
date year day month century | date | on in
population | number | population inhabitants people census
percentage percent | number | percent population
amount number | number | total number
size length height elevation distance | number | long high kilometres miles metres area
"""


def _relations() -> dict[str, tuple[Kind, frozenset[str]]]:
    table: dict[str, tuple[Kind, frozenset[str]]] = {}
    for line in _RELATIONS.strip().splitlines():
        asking, kind, cues = line.split(" | ")
        for word in asking.split():
            # A kind is a piece of a string here; a test compares all of them with the type.
            table.setdefault(word, (kind, _words(cues)))  # type: ignore[arg-type]
    return table


RELATIONS: Final = _relations()
"""By a word that asks: the kind of answer and the words that stand near it."""

CONTINENTS: Final = _names(
    """
    africa, antarctica, asia, europe, north america, oceania, south america
    """
)
"""Lower-cased."""

COUNTRIES: Final = _names(
    """
    afghanistan, albania, algeria, andorra, angola, argentina, armenia, australia, austria, azerbaijan, bahamas,
    bahrain, bangladesh, barbados, belarus, belgium, belize, benin, bhutan, bolivia, bosnia and herzegovina,
    botswana, brazil, brunei, bulgaria, burkina faso, burma, burundi, cambodia, cameroon, canada, cape verde,
    central african republic, chad, chile, china, colombia, comoros, congo, costa rica, croatia, cuba, cyprus, czech
    republic, czechoslovakia, democratic republic of the congo, denmark, djibouti, dominica, dominican republic,
    east germany, east timor, ecuador, egypt, el salvador, england, equatorial guinea, eritrea, estonia, ethiopia,
    fiji, finland, france, gabon, gambia, georgia, germany, ghana, great britain, greece, greenland, grenada,
    guatemala, guinea, guinea-bissau, guyana, haiti, honduras, hong kong, hungary, iceland, india, indonesia, iran,
    iraq, ireland, israel, italy, ivory coast, jamaica, japan, jordan, kazakhstan, kenya, kiribati, korea, kosovo,
    kuwait, kyrgyzstan, laos, latvia, lebanon, lesotho, liberia, libya, liechtenstein, lithuania, luxembourg,
    macedonia, madagascar, malawi, malaysia, maldives, mali, malta, mauritania, mauritius, mexico, micronesia,
    moldova, monaco, mongolia, montenegro, morocco, mozambique, myanmar, namibia, nauru, nepal, netherlands, new
    zealand, nicaragua, niger, nigeria, north korea, north macedonia, northern ireland, norway, oman, ottoman
    empire, pakistan, palau, palestine, panama, papua new guinea, paraguay, people's republic of china, peru,
    philippines, poland, portugal, puerto rico, qatar, republic of ireland, romania, russia, rwanda, samoa, san
    marino, saudi arabia, scotland, senegal, serbia, seychelles, sierra leone, singapore, slovakia, slovenia,
    solomon islands, somalia, south africa, south korea, south sudan, soviet union, spain, sri lanka, sudan,
    suriname, swaziland, sweden, switzerland, syria, taiwan, tajikistan, tanzania, thailand, togo, tonga, trinidad
    and tobago, tunisia, turkey, turkmenistan, tuvalu, u s, uganda, uk, ukraine, united arab emirates, united
    kingdom, united states, united states of america, uruguay, us, usa, uzbekistan, vanuatu, vatican city,
    venezuela, vietnam, wales, west germany, yemen, yugoslavia, zambia, zimbabwe
    """
)
"""Present and former countries and the parts of the United Kingdom, lower-cased."""

STATES: Final = _names(
    """
    alabama, alaska, arizona, arkansas, california, colorado, connecticut, delaware, florida, georgia, hawaii,
    idaho, illinois, indiana, iowa, kansas, kentucky, louisiana, maine, maryland, massachusetts, michigan,
    minnesota, mississippi, missouri, montana, nebraska, nevada, new hampshire, new jersey, new mexico, new york,
    north carolina, north dakota, ohio, oklahoma, oregon, pennsylvania, rhode island, south carolina, south dakota,
    tennessee, texas, utah, vermont, virginia, washington, west virginia, wisconsin, wyoming
    """
)
"""The states of the USA, lower-cased."""

MONTHS: Final = _words(
    """
    april august december february january july june march may november october september
    """
)
"""Lower-cased; a month counts only when capitalised, so the verbs do not."""

NUMBER_WORDS: Final = _words(
    """
    billion eight eighteen eighty eleven fifteen fifty five forty four fourteen hundred million nine nineteen ninety
    seven seventeen seventy six sixteen sixty ten thirteen thirty thousand three twelve twenty two
    """
)
"""Spelt-out numbers; ``one`` is left out, it is mostly a pronoun."""

ABBREVIATIONS: Final = _words(
    """
    capt col dr gen gov hon inc jr lt ltd mr mrs ms no prof rev sen sgt sr st vs
    """
)
"""A full stop after one of these, or after a single letter, ends no sentence."""

CONNECTORS: Final = _words(
    """
    & da de del della den der des di do dos du la le of the und van von
    """
)
"""Words that may stand uncapitalised inside a name."""

PERSON_WORDS: Final = _words(
    """
    dr emperor jr king president prince princess queen saint sir sr
    """
)
"""Words of a name that speak for a person."""

ROLE_WORDS: Final = _words(
    """
    actor bishop captain chancellor director dr emperor general governor judge king leader minister mr mrs pope
    president prince princess professor queen saint senator singer sir
    """
)
"""Words of rank before a person's name; the name also counts without them."""

PLACE_WORDS: Final = _words(
    """
    bay city county desert district east fort island islands kingdom lake mount mountain mountains new north ocean
    park peninsula port province region republic river sea south state street town township valley village west
    """
)
"""Words of a name that speak for a place."""

GROUP_WORDS: Final = _words(
    """
    academy agency airlines association band bank church club college commission committee company congress
    corporation council department entertainment fc foundation group inc institute league museum network orchestra
    organisation organization party pictures press records school society studios union united university
    """
)
"""Words of a name that speak for an organisation."""

ADJECTIVE_ENDINGS: Final = ("ese", "ish", "ian", "ean", "can")
"""A single capitalised word that ends so is mostly an adjective of nationality."""

PARTICIPLES: Final = _words("based born called considered known located named situated used")
"""Words that follow "is" or "was" and start no noun phrase."""
